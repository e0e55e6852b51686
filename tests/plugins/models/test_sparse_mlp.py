"""Sparse MLPs against float64, whole and shared by ranks that add up."""

import threading
from statistics import NormalDist

import torch
import torch.nn.functional as F

from hotshoe.layers import BuildContext, Matrix, Section
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.sparse_mlp import SparseMLP

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
HIDDEN, INNER, SPARSITY = 6, 16, 0.7


class Sum:
    """Adds up what two threads bring."""

    size = 2

    def __init__(self):
        self._barrier = threading.Barrier(2, timeout=60)
        self._parts = {}

    def rank(self, rank):
        def all_reduce(tensor, out=None):
            self._parts[rank] = tensor.clone()
            self._barrier.wait()
            total = self._parts[0] + self._parts[1]
            self._barrier.wait()
            return total if out is None else out.copy_(total)

        return type("Communicator", (), {"all_reduce": staticmethod(all_reduce), "size": 2})()


def build(**more):
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32, **more)
    channels = Section(INNER)
    rows, columns = ctx.split("channels", channels, channels), ctx.split("channels", channels)
    up = Matrix(ctx, [("gate", INNER), ("up", INNER)], HIDDEN, outputs=rows)
    down = Matrix(ctx, [("down", HIDDEN)], INNER, inputs=columns)
    return SparseMLP(ctx, up, down, "gelu_tanh", SPARSITY, INNER), ctx


def expected(x, weights):
    gate, up, down = (weights[f"{name}.weight"].double() for name in ("gate", "up", "down"))
    gates = x.double() @ gate.T
    cutoff = gates.mean(-1, keepdim=True)
    cutoff += gates.std(-1, keepdim=True, unbiased=False) * NormalDist().inv_cdf(SPARSITY)
    opened = F.gelu(F.relu(gates - cutoff), approximate="tanh")
    assert (opened > 0).any()
    assert (opened == 0).sum() > opened.numel() / 3
    return (opened * (x.double() @ up.T)) @ down.T


def test_whole_and_shared_by_ranks():
    whole, ctx = build()
    weights = {name: torch.randn(w.shape) for name, w in ctx.weights.expected.items()}
    x = torch.randn(9, HIDDEN)
    wanted, group, found = expected(x, weights), Sum(), {}

    def work(rank):
        part, own = build(rank=rank, size=2, communicator=group.rank(rank))
        for name, weight in weights.items():
            own.weights.feed(name, weight)
        found[rank] = part(x)

    for name, weight in weights.items():
        ctx.weights.feed(name, weight)
    torch.testing.assert_close(whole(x).double(), wanted, rtol=1e-4, atol=1e-4)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        torch.testing.assert_close(found[rank].double(), wanted, rtol=1e-4, atol=1e-4)
