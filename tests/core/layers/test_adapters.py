"""Places of adapters: who gives way, and memory that there is not."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Linear, Matrix
from hotshoe.layers.adapters import Factors
from hotshoe.slots import SLOTS, Selector


def adapted(ctx: BuildContext, limits: AdapterLimits) -> tuple[AdapterTable, Linear]:
    """Build a product [8] -> [6] that takes adapters."""
    table = AdapterTable(limits)
    own = replace(ctx, adapters=table, cache_layers=[], weight_bytes=[])
    return table, Linear(own, Matrix(own, [("w", 6)], 8))


def begin(table: AdapterTable, *names: str | None) -> bool:
    return table.begin(names, [1] * len(names), torch.arange(len(names)), "cpu")


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
