"""nanochat: no norm has weights, heads turn backwards."""

import torch


def test_norms_have_no_weights_and_heads_turn_backwards(build_family) -> None:
    ctx = build_family("NanoChat")
    assert not [name for name in ctx.weights.expected if "norm" in name]
    cos, sin = ctx.cache_layers[0]._cos_sin[1].chunk(2)
    assert (cos > 0).any() and sin[0] < 0
    assert torch.allclose(cos.square() + sin.square(), torch.ones_like(cos))
