"""Mixers: whatever a layer may name is there, and builds."""

import pytest

from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.mixers import MIXERS, AttentionMixer
from hotshoe_models.spec import DecoderSpec, LayerSpec

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.mark.parametrize("alike", [True, False])
def test_attention_asks_for_values_unless_keys_are_values(alike: bool) -> None:
    spec = DecoderSpec(
        vocab_size=1,
        hidden_size=6,
        layers=(LayerSpec(None, keys_as_values=alike),),
        norm_eps=1.0,
        tied=False,
        num_heads=4,
        num_kv_heads=2,
        head_dim=3,
    )
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32)
    assert MIXERS["attention"] is AttentionMixer
    AttentionMixer(spec, ctx, 0, {})
    parts = {name.split(".")[-2][0]: w.shape for name, w in ctx.weights.expected.items()}
    wanted = {"q": (12, 6), "k": (6, 6), "v": (6, 6), "o": (6, 12)}
    assert parts == {part: shape for part, shape in wanted.items() if part != "v" or not alike}
