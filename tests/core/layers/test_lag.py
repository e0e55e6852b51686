"""Two calls over states that are behind give what one call over right tokens gives."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import feed
from tests.core.layers.test_state_space import SHAPES, SPEC

from hotshoe.layers import StateSpace
from hotshoe.slots import CacheView, StepShape

MOST = 3
BLOCKS = 12


def make(ctx, checkpoints, drafts):
    ctx = replace(ctx, checkpoints=checkpoints, drafts=drafts, cache_layers=[])
    spec = replace(SPEC, checkpoints=checkpoints, conv_dtype="float32")
    layer = StateSpace(ctx, spec, "m.", True)
    layer.allocate_cache(BLOCKS + 1)
    return layer


def step(layer, inputs, rows, drafts=None):
    """Run a step.

    Args:
        inputs: For each sequence what its tokens bring.
        rows: For each its blocks, and its tokens including these.
        drafts: As `StepShape.host_drafts`.
    """
    counts, lens = [len(part) for part in inputs], [length for _, length in rows]
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    shape = StepShape(
        len(rows),
        starts,
        torch.tensor(lens, dtype=torch.int32),
        max(counts),
        max(lens),
        (counts, lens),
        drafts,
    )
    table = torch.tensor([blocks for blocks, _ in rows], dtype=torch.int32)
    view = CacheView(table, torch.zeros(sum(counts), dtype=torch.int32))
    view.prepared = layer.planner[1](shape, view)
    return layer._run(torch.cat(inputs), [view]).split(counts)


def assert_near(found, expected):
    """Compare within rounding, which sums that nearly cancel make much of."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("checkpoints", ["none", "align", "all"])
def test_refused_drafts_leave_no_trace(ctx, checkpoints):
    layer, plain = make(ctx, checkpoints, MOST), make(ctx, checkpoints, 0)
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    feed(ctx, weights)
    text = [torch.randn(20, sum(SPEC.sections)) for _ in range(3)]
    wrong = torch.randn(MOST, sum(SPEC.sections))
    tables = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10] * 5]
    expected = step(plain, text, [(blocks, 20) for blocks in tables])
    done, late = [5, 1, 2], [0, 0, 0]
    for row, count in enumerate(done):  # prompts, one after another
        [found] = step(layer, [text[row][:count]], [(tables[row], count)])
        assert_near(found, expected[row][:count])
    # Of each step: drafts of both sequences, and how many of them are right.
    for drafts, right in [([2, 0], [1, 0]), ([0, 3], [0, 3]), ([3, 1], [0, 1]), ([0, 0], [0, 0])]:
        if checkpoints == "align":  # whose steps end with a block, accepted drafts and all
            drafts = [min(n, -(at + 1) % 4) for n, at in zip(drafts, done[:2], strict=True)]
            right = [min(pair) for pair in zip(drafts, right, strict=True)]
        given, rows = [], []
        for row, (count, good) in enumerate(zip(drafts, right, strict=True)):
            at = done[row]
            given.append(torch.cat([text[row][at : at + 1 + good], wrong[: count - good]]))
            rows.append((tables[row], at + 1 + count))
        told = (late[:2], drafts) if any(late + drafts) else None
        found = step(layer, given, rows, told)
        for row, good in enumerate(right):
            at = done[row]
            assert_near(found[row][: 1 + good], expected[row][at : at + 1 + good])
            done[row], late[row] = at + 1 + good, good


def test_a_block_has_room_for_what_drafts_bring(ctx):
    layer, plain = make(ctx, "none", MOST), make(ctx, "none", 0)
    more = MOST * sum(SPEC.sections) * 4
    assert layer.cache_spec.block_bytes == plain.cache_spec.block_bytes + more
    assert (layer.cache_spec.drafts, plain.cache_spec.drafts) == (MOST, 0)
    other = make(ctx, "none", MOST)
    other.share_cache(layer)
    assert other._inputs is layer._inputs
    layer.free_cache()
    assert layer._inputs.untyped_storage().size() == 0
