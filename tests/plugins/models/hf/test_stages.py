"""Modules that are passed by, and weights of other stages."""

import torch
from torch import nn

from hotshoe.types.mesh import Axis
from hotshoe_models.hf import build
from hotshoe_models.hf.stages import Passed


def test_a_module_that_is_passed_by_has_its_attributes_and_no_weights() -> None:
    layer = nn.Linear(3, 4)
    passed, given = Passed(layer), torch.randn(2, 3)
    assert passed(given, "mask", cache=None) is given
    assert passed.in_features == 3
    assert list(passed.named_parameters()) == list(passed.children()) == []


def test_each_stage_wants_its_own_weights_and_knows_the_others(described, context) -> None:
    config = described("HeliumForCausalLM", tie_word_embeddings=False)
    whole, found = context(), [context(stage=Axis(rank, 2)) for rank in range(2)]
    for ctx in (whole, *found):
        build(config, ctx)
    first, last = (set(ctx.weights.expected) for ctx in found)
    assert first | last == set(whole.weights.expected) and not first & last
    assert "model.embed_tokens.weight" in first
    assert {"model.norm.weight", "lm_head.weight"} <= last
    for ctx in found:
        for name in whole.weights.expected:
            assert ctx.weights.wants(name) == (name in ctx.weights.expected)
