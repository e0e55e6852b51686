"""Attention to chosen blocks: against plain attention with a mask, in every form of a step."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import FACTS

from hotshoe.errors import ConfigError
from hotshoe.layers import (
    BlockAttention,
    BuildContext,
    ForwardBatch,
    QkNorm,
    Rotary,
    Rotation,
    assign_views,
)
from hotshoe.slots import SLOTS, AttentionSpec, BlockIndexerSpec, CacheView, Selector, StepShape
from hotshoe.slots.reference import attention, block_indexer
from hotshoe.slots.reference.rotary import rotate
from hotshoe.types.layout import lay_out
from hotshoe.types.trees import DraftTree, NoTreesError

GROUP, TOP_K, SIZE, DIM, LENGTH = 8, 3, 4, 8, 64
SPEC = AttentionSpec(4, 2, DIM, "float32", "float32", SIZE, 0.4)
INDEX = BlockIndexerSpec(2, 6, 4, GROUP, TOP_K, 1, "float32", "float32", SIZE)
ROTARY = Rotary.build(Rotation((1.0, 0.2)), LENGTH, "cpu", 2**30)


def context(**values):
    ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", SIZE, LENGTH)
    return replace(ctx, **values)


class Built:
    """A layer over poisoned caches, and requests that grow."""

    def __init__(self, spec=SPEC, index=INDEX, norms=None):
        ctx = context()
        self.layer = BlockAttention(ctx, spec, index, ROTARY, norms)
        layout = lay_out([layer.cache_spec for layer in ctx.cache_layers], LENGTH, LENGTH)
        self.plans = assign_views(ctx.cache_layers, layout)
        for layer in ctx.cache_layers:
            layer.allocate_cache(60)
            layer.cache.fill_(torch.nan)
        self.ctx, self.lengths, self.split = ctx, {}, False
        self.blocks = torch.randperm(59, dtype=torch.int32)[:48].view(3, 16)

    def batch(self, counts):
        """Let requests have so many further tokens."""
        positions, starts, slots = [], [0], []
        for row, count in counts.items():
            begin = self.lengths.get(row, 0)
            self.lengths[row] = begin + count
            at = torch.arange(begin, begin + count)
            positions.append(at)
            starts.append(starts[-1] + count)
            slots.append(self.blocks[row][at // SIZE] * SIZE + at % SIZE)
        lengths = [self.lengths[row] for row in counts]
        ends = torch.tensor(starts, dtype=torch.int32)
        most = max(counts.values())
        shape = StepShape(len(counts), ends, torch.tensor(lengths).int(), most, max(lengths))
        views = []
        for plan in self.plans:
            table = self.blocks[list(counts)][:, : -(-max(lengths) // SIZE)].clone()
            for row, length in zip(table, lengths, strict=True):
                row[-(-length // SIZE) :] = 1 << 20  # what is there is not looked at
            view = CacheView(table, torch.cat(slots).int())
            view.prepared = plan.prepare(shape, view)
            views.append(view)
        batch = ForwardBatch(torch.cat(positions).int(), shape, views)
        if self.split:
            batch.between = lambda q, attend, width=None: attend(q, views)
        return batch


def expected(given, spec=SPEC, index=INDEX):
    """Attend with whole sequences, [length, channels] each of qkv, q and key, under a mask."""
    qkv, q, key = given
    length, at = len(qkv), torch.arange(len(qkv))
    table = ROTARY.table[at]
    sizes = [spec.num_heads * DIM, spec.num_kv_heads * DIM, spec.num_kv_heads * DIM]
    heads, keys, values = (part.view(length, -1, DIM) for part in qkv.split(sizes, 1))
    heads, keys = (rotate(part, table, False) for part in (heads, keys))
    asked = rotate(q.view(length, -1, index.head_dim), table, False)
    own = rotate(key[:, None], table, False)[:, 0]
    scores = block_indexer.block_scores(index, asked, own, at)
    chosen = block_indexer.choose(index, scores, at)
    each, out = spec.num_heads // spec.num_kv_heads, []
    one = replace(spec, num_heads=each, num_kv_heads=1)
    for head in range(spec.num_kv_heads):
        blocks = at[None, :, None] // GROUP == chosen[:, head, None, :]
        mine = heads[:, head * each : (head + 1) * each]
        k, v = keys[:, head : head + 1], values[:, head : head + 1]
        out.append(attention.attend(one, mine, k, v, None, ~blocks.any(-1)).flatten(1))
    return torch.cat(out, 1)


def draw(length=LENGTH, spec=SPEC, index=INDEX):
    channels = (spec.num_heads + 2 * spec.num_kv_heads) * DIM
    return [torch.randn(length, n) for n in (channels, index.num_heads * 6, 6)]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)])
def test_chunks_decoding_and_several_requests(split, heads):
    spec = replace(SPEC, num_heads=heads[0], num_kv_heads=heads[1])
    index = replace(INDEX, num_heads=heads[1])
    built, texts = Built(spec, index), {row: draw(spec=spec, index=index) for row in (0, 1)}
    built.split, found = split, {0: [], 1: []}
    steps = [{0: 20}, {0: 3, 1: 5}, {0: 1, 1: 22}, {0: 1, 1: 1}, {1: 30}, {0: 30, 1: 1}, {0: 9}]
    for counts in steps:
        before = dict(built.lengths)
        batch, parts = built.batch(counts), []
        for row, count in counts.items():
            begin = before.get(row, 0)
            parts.append([part[begin : begin + count] for part in texts[row]])
        given = [torch.cat(part) for part in zip(*parts, strict=True)]
        out = built.layer(*(part.clone() for part in given), batch)
        for row, part in zip(counts, out.split(list(counts.values())), strict=True):
            found[row].append(part)
    for row, text in texts.items():
        right = expected(text, spec, index)[: built.lengths[row]]
        torch.testing.assert_close(torch.cat(found[row]), right, atol=1e-5, rtol=1e-5)


def test_short_steps_are_read_as_they_are():
    built, text = Built(), draw(GROUP * TOP_K)
    batch = built.batch({2: GROUP * TOP_K})
    step = batch.views[built.layer._heads[0].view].prepared
    assert step.num_reqs == 1 and step.max_query_len == GROUP * TOP_K
    out = built.layer(*(part.clone() for part in text), batch)
    torch.testing.assert_close(out, expected(text), atol=1e-5, rtol=1e-5)


def test_each_key_head_has_a_cache_and_all_have_one_view():
    built = Built(norms=QkNorm(1e-6, ("q", "k"), 1.0))
    kinds = [layer.cache_spec.kind for layer in built.ctx.cache_layers]
    assert kinds == ["index", "full", "full"] and len(built.plans) == 2
    assert len({layer.view for layer in built.ctx.cache_layers}) == 2
    assert built.ctx.weights.expected["q.weight"].shape == (DIM,)


def test_what_has_no_place_is_refused():
    with pytest.raises(ConfigError, match=r"block_size 4: .* blocks of 6 tokens.*--block-size 2"):
        BlockAttention(context(), SPEC, replace(INDEX, group=6), ROTARY)
    with pytest.raises(NoTreesError, match="choose blocks of tokens, where the nodes of a tree"):
        BlockAttention(context(tree=DraftTree((0,))), SPEC, INDEX, ROTARY)
