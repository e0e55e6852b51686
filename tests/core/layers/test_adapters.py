"""Places of adapters: who gives way, and memory that there is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotshoe.errors import MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Linear, Matrix
from hotshoe.layers.adapters import Factors
from hotshoe.slots import SLOTS, Selector, TransferSpec
from hotshoe.slots.reference.transfer import Transfer


def adapted(ctx: BuildContext, limits: AdapterLimits) -> tuple[AdapterTable, Linear]:
    """Build a product [8] -> [6] that takes adapters."""
    table = AdapterTable(limits)
    own = replace(ctx, adapters=table, cache_layers=[], weight_bytes=[])
    return table, Linear(own, Matrix(own, [("w", 6)], 8))


def begin(table: AdapterTable, *names: str | None) -> bool:
    return table.begin(names, [1] * len(names), np.arange(len(names)))


def test_the_longest_unused_gives_way(ctx: BuildContext) -> None:
    table, linear = adapted(ctx, AdapterLimits(2, 3))
    factors = {}
    for name in "abc":
        factors[name] = Factors(torch.randn(3, 8), torch.randn(6, 3), scale=0.5)
        table.load(name, {"w": factors[name]})
    x = torch.randn(2, 8)
    for names in (("a", "b"), ("a", None), ("c", "a"), ("b", "c")):
        assert begin(table, *names)
        y = torch.zeros(2, 6)
        linear._adapted(y, x)
        for row, name in enumerate(names):
            a, b, *_ = factors[name] if name else Factors(torch.zeros(1, 8), torch.zeros(6, 1))
            torch.testing.assert_close(y[row], 0.5 * b @ (a @ x[row]))
    assert not begin(table, None, None)


@pytest.mark.parametrize("magnitude", [None, torch.rand(6) + 0.5], ids=["plain", "DoRA"])
def test_a_product_of_another_type_takes_adapters(
    ctx: BuildContext, magnitude: torch.Tensor | None
) -> None:
    """As weights of an indexer are, float32 in a model of bfloat16."""
    table = AdapterTable(AdapterLimits(2, 3))
    own = replace(ctx, dtype="bfloat16", adapters=table, cache_layers=[], weight_bytes=[])
    linear = Linear(own, Matrix(own, [("w", 6)], 8), "float32")
    weight, x = torch.randn(6, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    own.weights.feed("w.weight", weight)
    pair = Factors(torch.randn(3, 8), torch.randn(6, 3), magnitude, scale=0.5)
    table.load("a", table.own({"w": pair}))
    assert begin(table, "a", None, "a")
    y, whole = linear(x), weight.double() + 0.5 * pair.b.double() @ pair.a.double()
    if magnitude is not None:
        whole *= (magnitude / whole.norm(dim=1)).unsqueeze(1)
    assert y.dtype == torch.float32
    wanted = x.double() @ whole.T
    wanted[1] = weight.double() @ x[1].double()
    torch.testing.assert_close(y.double(), wanted, rtol=0.03, atol=0.1)


def test_adapters_come_ahead_of_the_steps_that_need_them(ctx: BuildContext) -> None:
    table, linear = adapted(ctx, AdapterLimits(3, 2, (), 1))
    table._landing.open("cpu:0", Transfer(TransferSpec(2, fetches=True), ctx.selector.facts))
    factors = {}

    def load(name: str) -> None:
        factors[name] = Factors(torch.randn(2, 8), torch.randn(6, 2))
        table.load(name, {"w": factors[name]})

    def check(*names: str, ahead: tuple[str, ...] = ()) -> set[str]:
        assert table.begin(names, [1] * len(names), np.arange(len(names)), ahead)
        x, y = torch.randn(len(names), 8), torch.zeros(len(names), 6)
        linear._adapted(y, x)
        for row, name in enumerate(names):
            a, b, *_ = factors[name]
            torch.testing.assert_close(y[row], b @ (a @ x[row]))
        return set(table._places)

    for name in "abcde":
        load(name)
    assert check("a", "b", ahead=("c", "d")) == {"a", "b", "c"}
    assert check("a", "b", ahead=("c", "d")) == {"a", "b", "c"}
    assert check("c", "b", ahead=("d",)) == {"d", "b", "c"}  # behind which d arrives
    load("d")  # anew, while the one before is on its way
    assert check("c", "e", ahead=("d",)) == {"d", "e", "c"}
    assert check("d", "e", ahead=("a",)) == {"d", "e", "a"}
    table.drop("a")
    assert check("d", "e") == {"d", "e"}


def test_host_memory_is_counted_before_it_is_taken(ctx: BuildContext) -> None:
    each = 2 * (8 + 6) * 4
    table, _ = adapted(ctx, AdapterLimits(2, 2, host_bytes=2 * each))
    factors = table.own({"w": Factors(torch.randn(2, 8), torch.randn(6, 2))})
    for name in ("a", "b", "b"):
        assert table.check_room(name, factors) == each
        table.load(name, factors)
        assert table._landing._packed[name].numbers.nbytes == each
    with pytest.raises(MemoryLimitError, match=r"beside .* of 2 others, .* --lora-host-memory-gib"):
        table.load("c", factors)
    table.drop("a")
    table.load("c", factors)


def test_places_that_the_device_has_no_memory_for(ctx: BuildContext) -> None:
    small = replace(ctx.selector.facts, memory_bytes=4 * 2 * 3 * (8 + 6) - 1)
    ctx = replace(ctx, selector=Selector(SLOTS, [], small))
    with pytest.raises(MemoryLimitError, match="lower --max-loras or --max-lora-rank"):
        adapted(ctx, AdapterLimits(2, 3))
