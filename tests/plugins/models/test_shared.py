"""A mixer over another layer's cache: it needs that layer in its own stage."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe.types.mesh import Axis
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SPEC = DecoderSpec(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    layers=(LayerSpec(None), LayerSpec(None, shares=0), LayerSpec(None, shares=0)),
    norm_eps=1e-6,
    tied=True,
)


def context(**more):
    return BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32, **more)


def test_one_layer_keeps_what_three_read():
    ctx = context()
    DenseDecoder(SPEC, ctx)
    assert len(ctx.cache_layers) == 1
    names = {name for name in ctx.weights.expected if ".k_proj" in name or ".v_proj" in name}
    assert names == {f"model.layers.0.self_attn.{part}_proj.weight" for part in "kv"}


def test_a_stage_without_the_source_is_refused():
    with pytest.raises(ConfigError, match="layer 2 reads the cache of layer 0"):
        DenseDecoder(SPEC, context(stage=Axis(1, 2), stage_layers=(2, 1)))
