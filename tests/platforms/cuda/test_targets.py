"""Facts of real parts, and what would serve a model on each of them."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.platforms.cuda.conftest import Part

from hotshoe.cli.main import main
from hotshoe_cuda import nvml
from hotshoe_cuda.nvml import Gpu
from hotshoe_cuda.platform import CudaPlatform
from hotshoe_cuda.targets import PARTS, TARGETS, TUNED, describe
from hotshoe_triton.device import ARCHS, INTEL_ARCHS, arch_of


@pytest.mark.parametrize(
    ("capability", "features"),
    [
        ((8, 0), {"bfloat16", "smem_163k"}),
        ((8, 6), {"bfloat16", "smem_99k"}),
        ((8, 7), {"bfloat16"}),
        ((8, 9), {"bfloat16", "fp8", "smem_99k"}),
        ((9, 0), {"bfloat16", "fp8", "wgmma", "tma", "smem_227k"}),
        ((10, 0), {"bfloat16", "fp8", "fp4", "tma", "smem_227k"}),
        ((12, 0), {"bfloat16", "fp8", "fp4", "tma", "smem_99k"}),
        ((12, 1), {"bfloat16", "fp8", "fp4", "tma", "smem_99k"}),
    ],
)
def test_features_by_generation(capability: tuple[int, int], features: set[str]) -> None:
    facts = describe(Gpu("any", "", capability, 1 << 34, 100, ""), 3)
    assert facts.features == features
    assert facts.device == "cuda:3"


def test_linked_parts_are_peers() -> None:
    assert "peers" in describe(Gpu("any", "", (9, 0), 1 << 34, 100, "", linked=True), 0).features
    alone = {t.name for t in TARGETS if "peers" not in t.facts.features}
    assert alone == {"L40S", "GB10", *(f"GeForce RTX {n}" for n in (3090, 4090, 5090))}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_target_is_what_such_a_machine_says(install, monkeypatch, target) -> None:
    """Played by a library that says of the part what NVML does; GB10 has no memory of its own."""
    major, minor = (int(n) for n in re.fullmatch(r"sm_(\d+)(\d)", target.facts.arch).groups())
    [name] = [part[0] for part in PARTS if part[0].endswith(target.name)]
    per_unit = nvml.CORES_PER_UNIT.get((major, minor), nvml.NEWER_CORES_PER_UNIT)
    cores = target.facts.compute_units * per_unit
    pages = {"SC_PHYS_PAGES": target.facts.memory_bytes >> 12, "SC_PAGE_SIZE": 1 << 12}
    monkeypatch.setattr(nvml.os, "sysconf", pages.__getitem__)
    told = 0 if target.name == "GB10" else target.facts.memory_bytes
    install(Part(name, "GPU-1", (major, minor), told, cores))
    found = CudaPlatform().facts()
    assert found == replace(target.facts, features=target.facts.features - {"peers"})


def test_budgets_of_consumer_parts_are_those_of_the_data_sheets() -> None:
    """KiB of shared memory that one program may take. Source: CUDA's programming guide, AMD's ISA
    guides, Intel's data sheets."""
    sheets = {f"sm_{n}": 99 for n in (86, 89, 120, 121)}
    sheets |= dict.fromkeys(("gfx1100", "gfx1151", "gfx1200", "gfx1201", "dg2"), 64)
    sheets |= {"bmg": 128}
    known = ARCHS | INTEL_ARCHS
    assert {name: known[name].shared_bytes >> 10 for name in sheets} == sheets
    warps = {name: known[name].warp_size for name in sheets}
    assert set(warps.values()) == {32, 16}
    assert {name for name, size in warps.items() if size == 16} == set(INTEL_ARCHS) & set(sheets)


def test_what_a_part_is_shipped_with_can_be_compiled_without_it() -> None:
    commands = {t.name: [p.command for p in t.proofs if "--tuned" in p.command] for t in TARGETS}
    assert {name for name, found in commands.items() if found} == {"H200"}
    arguments = commands["H200"][0].split()
    file = arguments[arguments.index("--tuned") + 1]
    shipped = Path(__file__).parents[3] / file
    assert shipped.read_bytes() == (TUNED / "nvidia-h200.json").read_bytes()


def test_every_target_has_compiled_kernels() -> None:
    assert {target.facts.arch for target in TARGETS} <= set(ARCHS)
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("capability", [(8, 6), (10, 3), (12, 1)])
def test_siblings_of_a_target_have_compiled_kernels(capability: tuple[int, int]) -> None:
    facts = describe(Gpu("any", "", capability, 1 << 34, 100, ""), 0)
    assert arch_of(facts).target == 10 * capability[0] + capability[1]


@pytest.mark.parametrize(
    ("arch", "method", "chosen"),
    [("sm_80", "int8", "streaming"), ("sm_80", "fp8", "rounding"), ("sm_90", "fp8", "streaming")],
)
def test_weights_are_multiplied_as_stored_where_a_kernel_can(
    arch: str, method: str, chosen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = next(target.facts for target in TARGETS if target.facts.arch == arch)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(asdict(facts) | {"features": sorted(facts.features)}))
    flags = ["--quantization", method, "--json", "--device-facts", str(path)]
    assert main(["explain", "demo", *flags]) == 0
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    linears = [d for d in decisions if d["slot"] == "linear" and d["spec"]["weight"]]
    assert {d["chosen"] for d in linears} == {chosen}


@pytest.mark.parametrize("target", ["A100", "H200"])
def test_explain_says_that_nvfp4_stays_in_four_bits(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **heads}
    config |= {"quantization_config": said, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    [name] = [t.name for t in TARGETS if t.name.startswith(target)]
    flags = ["--load-format", "dummy", "--skip-tokenizer-init", "--device-facts", name]
    assert main(["explain", str(tmp_path), "--json", "--weights", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    linears = [d for d in found["decisions"] if d["slot"] == "linear" and d["spec"]["weight"]]
    assert {d["spec"]["weight"]["format"] for d in linears} == {"fp4_e2m1"}
    assert {d["chosen"] for d in linears} <= {"groups", "packed"}
    held = [w["weight_bytes"] for w in found["weights"] if "proj.weight" in w["name"]]
    assert 4.5 / 8 in held and max(size or 0 for size in held) == 4.5 / 8
