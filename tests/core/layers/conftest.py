"""A build context on plain references, and ways to run a layer over the states of sequences."""

import pytest
import torch

from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, CacheView, Selector, StepShape

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def ctx():
    return BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 4, 32)


def feed(ctx, weights):
    """Load all weights that layers expect."""
    for name in ctx.weights.expected:
        ctx.weights.feed(name, weights[name])
    ctx.weights.check_complete()


def run(layer, projected, block=2):
    """Compute one sequence's first tokens."""
    count = len(projected)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, count], [count]))
    shape = StepShape(1, starts, lengths, count, count)
    table = torch.tensor([[block]], dtype=torch.int32)
    view = CacheView(table, torch.zeros(count, dtype=torch.int32))
    view.prepared = layer.planner[1](shape, view)
    return layer(projected.clone(), ForwardBatch(lengths, shape, [view]))
