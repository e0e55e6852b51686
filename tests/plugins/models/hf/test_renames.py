"""Names of checkpoints become those of modules; weights of other shapes are refused by name."""

import pytest
from transformers.core_model_loading import WeightRenaming

from hotshoe.errors import CheckpointError
from hotshoe_models.hf import build, renames


def test_renames_are_those_of_the_table(described, context, monkeypatch) -> None:
    table = [WeightRenaming("^decoder.blocks", "model.layers")]
    monkeypatch.setattr(renames, "get_model_conversion_mapping", lambda model, **_: table)
    ctx = context()
    build(described("HeliumForCausalLM"), ctx)
    name = ctx.weights.known_as("decoder.blocks.1.mlp.up_proj.weight")
    assert name == "model.layers.1.mlp.up_proj.weight"
    assert ctx.weights.wants(name)


def test_experts_that_are_stacked_are_refused(described, context) -> None:
    config = described("OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2)
    with pytest.raises(CheckpointError, match=r"stacks the checkpoint's .*experts"):
        build(config, context())
