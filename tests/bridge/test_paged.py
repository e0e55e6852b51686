"""Attention over blocks of a host, in candidates' layouts with and without a gap."""

import pytest
import torch

from hotshoe.slots import AttentionSpec, CacheView, KVLayout, StepShape
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.paged import Paged, Step

SPEC = AttentionSpec(4, 2, 8, "float32", "float32", 4, 0.3)


def step_of(table: torch.Tensor, queries: list[int], lens: list[int]) -> Step:
    """Return a step of sequences with these blocks."""
    starts = [0]
    for count in queries:
        starts.append(starts[-1] + count)
    places = [
        int(row[at // 4]) * 4 + at % 4
        for row, count, end in zip(table, queries, lens, strict=True)
        for at in range(end - count, end)
    ]
    shape = StepShape(
        len(queries),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lens, dtype=torch.int32),
        max(queries),
        max(lens),
        host_lens=(queries, lens),
    )
    slots = torch.tensor(places, dtype=torch.int32)
    return Step(shape, CacheView(table, slots), starts[-1])


@torch.inference_mode()
@pytest.mark.parametrize("platform", ["reference", "cpu"])
def test_results_are_those_of_a_plain_product(operations, platform) -> None:
    """Two sequences, of which one comes in two steps; other blocks stay as they were."""
    if platform == "cpu":
        operations = Operations("cpu")
    paged = Paged(SPEC, operations)
    memory = torch.full((9, 2, 4, 16), 7.0)
    table = torch.tensor([[5, 1, 8], [3, 2, 0]], dtype=torch.int32)
    lens = [10, 5]
    keys, values = ([torch.randn(n, 2, 8) for n in lens] for _ in range(2))
    for queries, ends in (([6, 5], [6, 5]), ([4], [10])):
        step = step_of(table[: len(queries)], queries, ends)
        spans = [slice(end - n, end) for n, end in zip(queries, ends, strict=True)]
        k, v = (
            torch.cat([part[span] for part, span in zip(parts, spans, strict=False)])
            for parts in (keys, values)
        )
        q = torch.randn(sum(queries), 4, 8)
        paged.write(k, v, memory, step.view.slot_mapping)
        y = paged(q, memory, step, None)
        for i, (rows, span) in enumerate(zip(q.split(queries), spans, strict=True)):
            wide = [part[i][: span.stop].repeat_interleave(2, 1) for part in (keys, values)]
            scores = torch.einsum("qhd,khd->hqk", rows, wide[0]) * 0.3
            at = torch.arange(span.stop)
            scores = scores.masked_fill(at > at[span][:, None], -torch.inf)
            want = torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide[1])
            assert torch.allclose(y.split(queries)[i], want, atol=1e-5)


class Layout:
    """Attention that has nothing but a layout."""

    def __init__(self, gap: int) -> None:
        self.layout = KVLayout("any", "htd", "htd", gap=gap)


@pytest.mark.parametrize("gap", [0, 16])
def test_where_keys_and_values_lie(operations, monkeypatch, gap: int) -> None:
    """By a block's id where kernels go by strides; else all keys come before all values."""
    monkeypatch.setattr(operations, "choose", lambda slot, spec: Layout(gap))
    paged = Paged(SPEC, operations)
    memory = torch.arange(3 * 2 * 64.0).view(3, 2, 4, 16)
    view = paged.blocks(memory)
    assert view is paged.blocks(memory)  # kernels keep addresses
    assert view.shape == (2, 3, 64)
    assert view[1, 0, 0] == (64 if gap else 3 * 64)
    for wrong in (memory.transpose(1, 2), memory[..., :8].contiguous()):
        with pytest.raises(ValueError, match="128 numbers a block in one piece are meant"):
            paged.blocks(wrong)


def test_mixed_blocks_need_a_kernel_that_goes_by_strides(operations, monkeypatch) -> None:
    monkeypatch.setattr(operations, "choose", lambda slot, spec: Layout(16))
    Paged(SPEC, operations, mixed=True)
    monkeypatch.setattr(operations, "choose", lambda slot, spec: Layout(0))
    with pytest.raises(ValueError, match="force another candidate"):
        Paged(SPEC, operations, mixed=True)


def test_a_step_is_planned_once_for_equal_layers() -> None:
    plans = []

    class Op:
        def prepare(self, shape, view):
            plans.append(view)
            return len(plans)

    step = step_of(torch.tensor([[1]], dtype=torch.int32), [2], [2])
    assert [step.prepared(SPEC, Op()) for _ in range(2)] == [1, 1]
