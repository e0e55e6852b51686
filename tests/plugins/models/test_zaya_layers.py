"""Layers of Zaya that a comparison with transformers in float32 does not show."""

import pytest
import torch

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.zaya import build
from hotshoe_models.zaya_layers import StateRouter, ZayaDecoder

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def decoder(tmp_path) -> ZayaDecoder:
    values = {
        "vocab_size": 32,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_experts": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "moe_intermediate_size": 8,
        "router_hidden_size": 4,
    }
    config = ModelConfig(tmp_path, "ZayaForCausalLM", values, "bfloat16", 16, ())
    ctx = BuildContext(Selector(SLOTS, [], CPU), "bfloat16", "bfloat16", 4, 16)
    made = build(config, ctx)
    for want in ctx.weights.expected.values():
        for sink in want.sinks:
            sink(torch.randn(want.shape).bfloat16())
    return made


def test_router_and_residual_stay_in_float32(decoder):
    router: StateRouter = decoder._zaya_layers[1]._router
    x, before = torch.randn(5, 16).bfloat16(), torch.randn(5, 4)
    logits, state = router(x, before)
    assert logits.shape == (5, 4) and logits.dtype == state.dtype == torch.float32
    # What the router before has learned beyond bfloat16 is not lost.
    other = router(x, before * (1 + 1e-4))[1]
    assert 0 < (other - state).abs().max() < 1e-2
    joint = decoder._zaya_layers[1]._after_mixer
    residual = torch.randn(5, 16)
    kept = residual.clone()
    assert joint(x, residual).dtype == torch.float32 and torch.equal(residual, kept)
