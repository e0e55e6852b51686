"""Adapters amid a selective scan: each sequence is computed with the sum of its own factors."""

import numpy as np
import pytest
import torch
from tests.core.layers.conftest import run
from tests.core.layers.test_selective import CPU, NORMS, SPEC

from hotshoe.errors import CheckpointError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, ForwardBatch, SelectiveScan
from hotshoe.layers.adapters import Changes, Factors
from hotshoe.slots import SLOTS, CacheView, Selector, StepShape

COUNTS = [3, 1, 4, 2]
NAMES = {"m.x_proj": (11, 6), "m.dt_proj": (6, 3)}


def build() -> tuple[SelectiveScan, BuildContext]:
    table = AdapterTable(AdapterLimits(2, 8))
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 8, 32, adapters=table)
    layer = SelectiveScan(ctx, SPEC, "m.", conv_bias=False, norms=tuple(NORMS))
    layer.allocate_cache(8)
    return layer, ctx


def feed(ctx: BuildContext, weights: dict[str, torch.Tensor]) -> None:
    for name in ctx.weights.expected:
        ctx.weights.feed(name, weights[name])


def factors(matrix: str, rank: int = 2) -> Factors:
    rows, columns = NAMES[matrix]
    return Factors(torch.randn(rank, columns), torch.randn(rows, rank), None, 0.5)


def test_sequences_have_the_sums_of_their_adapters() -> None:
    layer, ctx = build()
    weights = {name: torch.randn(w.shape) for name, w in ctx.weights.expected.items()}
    feed(ctx, weights)
    given = {
        "both": {name: factors(name) for name in NAMES},
        "one": {"m.x_proj": factors("m.x_proj")},
    }
    for name, pairs in given.items():
        ctx.adapters.load(name, ctx.adapters.own(pairs))
    projected = torch.randn(sum(COUNTS), 12)
    chosen = ["both", None, "one", "both"]
    changes = ctx.adapters.begin(chosen, COUNTS, np.arange(sum(COUNTS)))
    assert changes == Changes.APART
    starts = torch.tensor([0, *np.cumsum(COUNTS)], dtype=torch.int32)
    lens = torch.tensor(COUNTS, dtype=torch.int32)
    shape = StepShape(4, starts, lens, 4, 4, (COUNTS, COUNTS))
    view = CacheView(torch.arange(1, 5).view(4, 1), torch.zeros(len(projected), dtype=torch.int32))
    view.prepared = layer.planner[1](shape, view)
    found = layer(projected.clone(), ForwardBatch(lens, shape, [view]))
    parts = zip(chosen, projected.split(COUNTS), found.split(COUNTS), strict=True)
    for number, (name, x, y) in enumerate(parts):
        plain, own = build()
        merged = dict(weights)
        for matrix, (a, b, _, scale, *_) in given.get(name, {}).items():
            merged[f"{matrix}.weight"] = merged[f"{matrix}.weight"] + scale * b @ a
        feed(own, merged)
        torch.testing.assert_close(y, run(plain, x), rtol=1e-4, atol=1e-5)
        states = layer.cache[1][number + 1], plain.cache[1][2]
        torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_new_weights_and_other_adapters_make_new_sums() -> None:
    layer, ctx = build()
    weights = {name: torch.randn(w.shape) for name, w in ctx.weights.expected.items()}
    for scale in (1.0, 2.0):
        feed(ctx, {name: scale * tensor for name, tensor in weights.items()})
        ctx.adapters.settle()
        for name in ("a", "b", "c"):  # more than there are places
            pair = factors("m.dt_proj")
            ctx.adapters.load(name, {"m.dt_proj": pair})
            ctx.adapters.begin([name], [3], np.arange(3))
            nothing = torch.zeros(2)
            shape = StepShape(1, nothing, nothing, 3, 3, ([3], [3]))
            [part] = layer._adapted.parts(3, shape, CacheView(torch.zeros(1, 1), torch.zeros(3)))
            summed = layer._adapted.summed(part.place, layer.state())["dt"]
            wanted = scale * weights["m.dt_proj.weight"] + 0.5 * pair.b @ pair.a
            torch.testing.assert_close(summed, wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magnitude": torch.ones(6)}, "a magnitude of m.dt_proj, of which low-rank factors alone"),
        ({"a": torch.randn(2, 4)}, "m.dt_proj"),
        ({"a": torch.randn(9, 3), "b": torch.randn(6, 9)}, "rank is 9, above --max-lora-rank 8"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, torch.Tensor], message: str) -> None:
    _, ctx = build()
    with pytest.raises(CheckpointError, match=message):
        ctx.adapters.own({"m.dt_proj": factors("m.dt_proj")._replace(**changes)})
