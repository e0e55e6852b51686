"""The build context hands out this engine's types and sizes."""

import torch

from hotshoe.layers import BuildContext
from hotshoe.slots import AttentionSpec


def test_device_and_type_come_from_selector_and_name(ctx):
    assert ctx.device == ctx.selector.facts.device
    assert ctx.torch_dtype == torch.float32
    other = BuildContext(ctx.selector, "bfloat16", "float16", 8, 32)
    assert other.torch_dtype == torch.bfloat16


def test_an_attention_specification_starts_with_the_engines_types(ctx):
    other = BuildContext(ctx.selector, "bfloat16", "float16", 8, 32)
    assert other.attention_spec(4, 2, 64, 0.5) == AttentionSpec(
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        dtype="bfloat16",
        kv_dtype="float16",
        block_size=8,
        scale=0.5,
    )


def test_contexts_share_nothing(ctx):
    other = BuildContext(ctx.selector, "float32", "float32", 4, 32)
    other.cache_layers.append(None)
    other.weights.expect("w", (1,), lambda tensor: None)
    assert not ctx.cache_layers and not ctx.weights.expected
