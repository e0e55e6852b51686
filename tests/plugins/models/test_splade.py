"""Entries for words are those that transformers' logits make."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close
from tests.plugins.models.test_encoder import logits, made

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import CheckpointError
from hotshoe_models.splade import SPARSE

MODULES = ("MLMTransformer", "SpladePooling")


def sparse(path: Path, modules: tuple[str, ...] = MODULES, **values: Any) -> None:
    """Write what sentence-transformers has beside a sparse encoder."""
    root = "sentence_transformers.sparse_encoder.models."
    found = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": root + name}
        for i, name in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(found))
    (path / "1_SpladePooling").mkdir(exist_ok=True)
    whole = {"pooling_strategy": "max", "activation_function": "relu", **values}
    (path / "1_SpladePooling/config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("family", ["Bert", "DistilBert", "XLMRoberta"])
def test_entries_are_the_largest_of_the_tokens(family: str, tmp_path: Path) -> None:
    model = made(tmp_path, family, "ForMaskedLM")
    sparse(tmp_path)
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("embed",)
        assert llm.engine.info.vector_size == model.config.vocab_size
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        wanted = logits(model, prompt).relu().log1p().amax(0)
        assert wanted.count_nonzero()
        close(output.embedding, wanted, 1e-4)


def test_an_override_may_ask_for_them(tmp_path: Path) -> None:
    model = made(tmp_path, "Bert", "ForMaskedLM")
    overrides = {"architectures": [SPARSE]}
    with LLM(str(tmp_path), hf_overrides=overrides, **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[1]))
    close(output.embedding, logits(model, PROMPTS[1]).relu().log1p().amax(0), 1e-4)


@pytest.mark.parametrize(
    ("cls", "modules", "values", "message"),
    [
        ("ForMaskedLM", MODULES, {"pooling_strategy": "sum"}, "pooling_strategy is 'sum'"),
        ("ForMaskedLM", MODULES, {"activation_function": "log1p_relu"}, "activation_function"),
        ("ForMaskedLM", (*MODULES, "Dense"), {}, "'Dense' beside SpladePooling"),
        ("Model", MODULES, {}, "BertModel has no head for words"),
    ],
)
def test_other_forms_are_refused(
    cls: str, modules: tuple[str, ...], values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made(tmp_path, "Bert", cls)
    sparse(tmp_path, modules, **values)
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), **OPTIONS)


def test_a_head_that_is_not_known_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "Electra", "ForMaskedLM")
    sparse(tmp_path)
    with pytest.raises(CheckpointError, match="no head for words that is known"):
        LLM(str(tmp_path), **OPTIONS)
