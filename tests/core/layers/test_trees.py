"""Which operation attends in a step with trees, and which layers take none."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import ConfigError
from hotshoe.layers.trees import BranchingAttention
from hotshoe.slots import AttentionSpec, CacheView, StepShape, TreeNodes
from hotshoe.types.trees import ancestors_of

SPEC = AttentionSpec(2, 1, 8, "float32", "float32", 4, 0.3)
PARENTS = [-1, 0, -1]


def attended(ctx, spec, tree):
    """Attend with the last four of nine tokens, of which three may be nodes."""
    op = BranchingAttention(ctx, spec, ctx.selector.choose("attention", spec))
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(4, 2, 8, generator=generator)
    cache = torch.randn(2, 5, 4 * 8, generator=generator)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, 4], [9]))
    shape = StepShape(1, starts, lengths, 4, 9)
    if tree:
        masks = torch.tensor([0, *ancestors_of(PARENTS)])
        shape.tree = TreeNodes(torch.tensor([3], dtype=torch.int32), masks)
    view = CacheView(torch.tensor([[3, 0, 2]], dtype=torch.int32), torch.zeros(4).int())
    return op(q, cache, op.prepare(shape, view), None)


def test_nodes_see_their_path_and_others_see_all_before(ctx):
    chain, tree = (attended(ctx, SPEC, tree) for tree in (False, True))
    torch.testing.assert_close(chain[:3], tree[:3])  # the root, and the chain behind it
    assert not torch.allclose(chain[3], tree[3])


def test_a_window_that_holds_every_sequence_is_none(ctx):
    wide = replace(SPEC, window=ctx.max_model_len)
    torch.testing.assert_close(attended(ctx, wide, True), attended(ctx, SPEC, True))
    with pytest.raises(ConfigError, match="layers with a window"):
        attended(ctx, replace(SPEC, window=ctx.max_model_len - 1), True)
