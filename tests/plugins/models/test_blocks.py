"""The mixer that chooses blocks: what a rank asks for, and of which numbers it chooses."""

from dataclasses import replace

import pytest
from tests.plugins.models.conftest import CPU

from hotshoe.layers import BuildContext, Rotary, Rotation
from hotshoe.slots import SLOTS, BlockIndexerSpec, Selector
from hotshoe_models.blocks import BlockMixer
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames

ROTATION = Rotation((1.0, 0.1))
SPEC = DecoderSpec(
    vocab_size=8,
    hidden_size=16,
    layers=(LayerSpec(ROTATION, mixer="blocks"),),
    norm_eps=1e-6,
    tied=False,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    norm_offset=1.0,
    names=WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm")),
    blocks=BlockIndexerSpec(4, 6, 4, 8, 2, 1, "float32", "float32", 4),
)


def mixer(size=1):
    ctx = BuildContext(
        Selector(SLOTS, [], CPU), "float32", "float32", 4, 64, rank=size - 1, size=size
    )
    rotaries = {ROTATION: Rotary.build(ROTATION, 64, "cpu", 1 << 30)}
    return ctx, BlockMixer(SPEC, ctx, 0, rotaries)


def test_what_is_asked_for():
    ctx, made = mixer()
    found = {
        n.removeprefix("model.layers.0.self_attn."): w.shape
        for n, w in ctx.weights.expected.items()
    }
    assert {name: shape for name, shape in found.items() if "indexer" in name} == {
        "indexer.q_proj.weight": (24, 16),
        "indexer.k_proj.weight": (6, 16),
        "indexer.q_norm.weight": (6,),
        "indexer.k_norm.weight": (6,),
    }
    assert {"q_proj.weight", "k_norm.weight", "o_proj.weight"} <= found.keys()
    assert made.input_quant is None


@pytest.mark.parametrize(("size", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_ranks_choose_for_their_key_heads(size, heads):
    ctx, _ = mixer(size)
    [asked] = [spec for slot, spec in ctx.selector.decisions if slot == "block_indexer"]
    assert asked == replace(SPEC.blocks, num_heads=heads)
    assert len(ctx.cache_layers) == 1 + heads
    place = ctx.weights.expected["model.layers.0.self_attn.indexer.q_proj.weight"].places[0]
    assert place is not None and place.rows == (0, 6 * heads)
