"""Names of checkpoints become those of modules; weights of other shapes are refused by name."""

import pytest
import torch
from transformers.core_model_loading import (
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
)

from hotshoe.errors import CheckpointError
from hotshoe_models.hf import build, model, renames


def test_renames_are_those_of_the_table(described, context, monkeypatch) -> None:
    table = [WeightRenaming("^decoder.blocks", "model.layers")]
    monkeypatch.setattr(renames, "get_model_conversion_mapping", lambda tree, **_: table)
    ctx = context()
    build(described("HeliumForCausalLM"), ctx)
    name = ctx.weights.known_as("decoder.blocks.1.mlp.up_proj.weight")
    assert name == "model.layers.1.mlp.up_proj.weight"
    assert ctx.weights.wants(name)


def test_experts_are_taken_one_by_one(described, context, monkeypatch) -> None:
    """Also where no slot of ours computes them."""
    monkeypatch.setattr(model, "replace_experts", lambda *_: [])
    ctx = context()
    build(described("OlmoeForCausalLM", num_experts=3, num_experts_per_tok=2), ctx)
    prefix = "model.layers.1.mlp.experts."
    names = [name for name in ctx.weights.expected if name.startswith(prefix)]
    assert len(names) == 3 * 3
    gate, up, down = (f"{prefix}2.{part}_proj.weight" for part in ("gate", "up", "down"))
    assert [ctx.weights.where(name)[0].rows for name in (gate, up)] == [(0, 48), (48, 96)]
    for name, value in ((gate, 1.0), (up, 2.0), (down, 3.0)):
        ctx.weights.feed(name, torch.full(ctx.weights.expected[name].shape, value))
    stack = ctx.weights.where(up)[0].holder.state()["gate_up_proj"]
    assert stack.shape == (3, 96, 32)
    assert torch.equal(stack[2, :, 0], torch.tensor([1.0] * 48 + [2.0] * 48))
    assert ctx.weights.where(down)[0].holder.state()["down_proj"][2].eq(3).all()


@pytest.mark.parametrize("operation", [MergeModulelist(dim=1), Transpose()])
def test_other_changes_of_shape_are_refused(operation, described, context, monkeypatch) -> None:
    table = [WeightConverter("mlp.*.proj.weight", "mlp.proj.weight", [operation])]
    monkeypatch.setattr(renames, "get_model_conversion_mapping", lambda tree, **_: table)
    with pytest.raises(CheckpointError, match=r"makes mlp.proj.weight of .* mlp\.\*\.proj"):
        build(described("HeliumForCausalLM"), context())
