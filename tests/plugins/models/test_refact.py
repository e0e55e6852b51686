"""Refact against StableLM without biases of norms, whose scores fall with the distance."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.test_own_code import Case, written
from tests.plugins.models.test_published import (
    HEADS,
    LAYERS,
    NAMES,
    SIZE,
    Tensors,
    compare,
    renamed,
)

from hotshoe.errors import CheckpointError

CONFIG = {
    "vocab_size": VOCAB,
    "n_embd": SIZE,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": 300,
    "n_positions": LENGTH,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
#: Of what computes the same; a third less than `n_inner`, up to a multiple of 256.
VALUES = {
    "num_key_value_heads": 1,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 256,
    "layer_norm_eps": 1e-5,
}
BIASES = r"norm\.bias$"


def first_form(tensors: Tensors) -> Tensors:
    """Name tensors as the first files do, and GGUF files."""
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith("norm.bias")}
    mlp = ("mlp.gate_proj", "mlp.linear_1"), ("mlp.up_proj", "mlp.linear_3")
    others = (r"self_attn\.([qkv])_proj", r"attn.\1"), ("self_attn.o_proj", "attn.c_proj")
    names = (("model.norm", "ln_f"), *NAMES, *mlp, ("mlp.down_proj", "mlp.c_proj"), *others)
    return renamed(plain, *names)


def both_forms(tensors: Tensors) -> Tensors:
    """Stack the others of q, and gates and ups, in the first layer, as later files do in all."""
    found, layer = first_form(tensors), "transformer.h.0."
    for whole, *parts in (
        ("attn.kv", "attn.k", "attn.v"),
        ("mlp.gate_up_proj", "mlp.linear_1", "mlp.linear_3"),
    ):
        rows = [found.pop(f"{layer}{part}.weight") for part in parts]
        found[f"{layer}{whole}.weight"] = torch.cat(rows)
    return found


CASE = Case("StableLm", VALUES, CONFIG, both_forms, zero=BIASES, sloped=True)


def test_logits_are_those_of_the_same_model(stepper_class, tmp_path: Path) -> None:
    made = written("GPTRefactForCausalLM", CASE, tmp_path / "target")
    compare(made, tmp_path / "target", stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"multi_query": False}, "multi_query"), ({"n_inner": 1}, "has MLPs of 2 channels or more")],
)
def test_other_shapes_are_refused(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    config = {**CONFIG, "architectures": ["GPTRefactForCausalLM"], **values}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
