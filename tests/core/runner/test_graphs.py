"""Which recording a batch runs in."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.runner.graphs import DecodeGraphs, graph_sizes
from hotshoe.slots import GraphSpec
from hotshoe.slots.reference.graph import Graph

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 5, 17, 64, 200, 256, 511, 512, 4096])
def test_sizes_cover_every_batch_up_to_512_with_little_padding(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(max_num_seqs, 512)
    assert len(sizes) <= 24
    for n in range(1, sizes[-1] + 1):
        size = min(s for s in sizes if s >= n)
        assert size < 2 * n
        assert size - n < 32


def test_a_batch_runs_in_the_smallest_recording_that_holds_it() -> None:
    graphs = DecodeGraphs(Graph(GraphSpec(8), FACTS), (2, 4, 8))
    assert graphs.size_for(3) is None  # nothing is recorded yet
    for size in graphs.sizes:
        graphs.record(size, lambda size=size: torch.full((size,), float(size)))
    assert [graphs.size_for(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, None]
    assert graphs.replay(4).tolist() == [4.0] * 4
