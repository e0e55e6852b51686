"""The reference of attention with trees: paths one by one, through the reference without trees."""

import pytest
import torch

from hotshoe.slots import AttentionMetadata, AttentionSpec, KVLayout, TreeAttentionSpec, TreeNodes
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import PagedKV
from hotshoe.slots.reference.tree_attention import TreeAttention
from hotshoe.types.trees import ROOT, ancestors_of

LAYOUT = KVLayout("head-major", "htd", "htd")
SPEC = AttentionSpec(4, 2, 8, "float32", "float32", 4, 0.3)
PARENTS = [ROOT, 0, 1, ROOT, 0, 3, 1]


@pytest.mark.parametrize("parents", [[], PARENTS, list(range(-1, 63)), [ROOT] * 64])
def test_a_node_sees_its_own_path(parents: list[int]) -> None:
    before, count = 11, len(parents) + 3  # of which three come before the tree
    length = before + count
    q, (k, v) = torch.randn(count, 4, 8), torch.randn(2, length, 2, 8)
    blocks = torch.randperm(40)[: -(-length // 4)]
    cache = torch.full((2, 40, 4 * 2 * 8), float("nan"))
    places = torch.arange(length)
    slots = blocks[places // 4] * 4 + places % 4
    PagedKV(cache, LAYOUT, 4, 2, 8).write(k, v, slots)
    masks = [m - (1 << 64) if m >> 63 else m for m in ancestors_of(parents)]
    step = AttentionMetadata(
        1,
        torch.tensor([0, count], dtype=torch.int32),
        torch.tensor([length], dtype=torch.int32),
        blocks[None].int(),
        slots[before:].int(),
        count,
        length,
    )
    nodes = TreeNodes(torch.tensor([len(parents)]).int(), torch.tensor([0] * 3 + masks))
    found = TreeAttention(TreeAttentionSpec(SPEC, LAYOUT), None)(q, cache, step, nodes, None)
    first = length - len(parents)
    for at in range(count):
        node, seen = at - 3, list[int]()
        while node >= 0:
            seen.append(first + node)
            node = parents[node]
        seen = [*range(min(before + at + 1, first)), *seen[::-1]]
        expected = attend(SPEC, q[at : at + 1], k[seen], v[seen], None)
        torch.testing.assert_close(found[at], expected.flatten())
