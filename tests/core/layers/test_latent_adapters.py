"""Adapters of the matrix of latent attention: what a layer with the sums of matrices computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.core.layers.test_latent import (
    HEADS,
    LATENT,
    NOPE,
    VALUE,
    feed,
    inputs,
    make,
    run,
    weights,
)

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, Changes
from hotshoe.layers.adapters import Factors
from hotshoe.slots import SLOTS, Selector

ROWS = HEADS * (NOPE + VALUE)
RANKS = {"one": 2, "two": 3}


def adapted(ctx, **limits):
    """Return a context with room for adapters."""
    return replace(ctx, adapters=AdapterTable(AdapterLimits(2, 3, **limits)), cache_layers=[])


def factors(rank):
    a, b = torch.randn(rank, LATENT) * LATENT**-0.5, torch.randn(ROWS, rank) * rank**-0.5
    return Factors(a, b, scale=0.5)


def begin(table, *names):
    """Let the tokens of a step have these adapters."""
    return table.begin(names, [1] * len(names), np.arange(len(names)))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("size", [1, 2])
def test_each_token_has_the_matrix_of_its_adapter(ctx, size, window):
    """Tokens of one request may have several here, as latents depend on none."""
    (up, norm), (q, rows) = weights(), inputs(4)
    sums = {None: up}
    names = ["two", None, "one", "two"]
    loaded = {name: factors(rank) for name, rank in RANKS.items()}
    for name, pair in loaded.items():
        sums[name] = up + 0.5 * pair.b @ pair.a
    wanted = {}
    for name, summed in sums.items():
        plain = replace(ctx, cache_layers=[], weights=type(ctx.weights)())
        layer = make(plain, window=window)
        feed(plain, summed, norm)
        wanted[name] = run(layer, q, rows).view(4, size, -1)
    for rank in range(size):
        own = replace(adapted(ctx), rank=rank, size=size, weights=type(ctx.weights)())
        layer = make(own, window=window)
        feed(own, up, norm)
        for name, pair in loaded.items():
            own.adapters.load(name, own.adapters.own({"kv_b": pair}))
        part = q.view(4, size, -1)[:, rank]
        assert begin(own.adapters, *names) == Changes.LATENTS
        found = run(layer, part, rows)
        for at, name in enumerate(names):
            torch.testing.assert_close(found[at], wanted[name][at, rank])
            assert name is None or not torch.allclose(found[at], wanted[None][at, rank], atol=1e-3)
        assert not begin(own.adapters, None, None, None, None)
        torch.testing.assert_close(run(layer, part, rows), wanted[None][:, rank])


def test_a_factor_on_the_matrix_is_one_on_its_adapter(ctx):
    own, (up, norm), (q, rows) = adapted(ctx), weights(), inputs()
    layer, pair = make(own), factors(3)
    layer.up_scale = 2.0
    feed(own, up, norm)
    own.adapters.load("one", own.adapters.own({"kv_b": pair}))
    begin(own.adapters, *["one"] * 4)
    found = run(layer, q, rows)
    plain = replace(ctx, cache_layers=[], weights=type(ctx.weights)())
    whole = make(plain)
    feed(plain, 2 * (up + 0.5 * pair.b @ pair.a), norm)
    torch.testing.assert_close(found, run(whole, q, rows))


def test_other_adapters_leave_the_operation_alone(ctx, monkeypatch):
    own, asked = adapted(ctx), []
    layer = make(own)
    feed(own, *weights())
    own.adapters.load("one", own.adapters.own({"kv_b": factors(2)}))
    monkeypatch.setattr(layer, "_op", Told(layer._op, asked))
    names = ["one"] * 4
    for changes, told in ((Changes.LATENTS, True), (Changes.LINEAR, False)):
        own.adapters._changes["one"] = changes
        begin(own.adapters, *names)
        run(layer, *inputs())
        assert asked.pop() == told and not asked
    own.adapters._changes["one"] = Changes.LATENTS
    assert own.adapters.recordable() == (Changes.NOTHING, Changes.LINEAR, Changes.LATENTS)
    own.adapters.drop("one")
    assert own.adapters.recordable() == (Changes.NOTHING, Changes.LINEAR)


class Told:
    """An operation that writes down whether it was given adapters."""

    def __init__(self, op, asked):
        self.op, self.asked = op, asked
        self.write = op.write

    def __call__(self, *args, **more):
        self.asked.append("adapters" in more)
        return self.op(*args, **more)


def test_a_target_that_is_not_named_takes_no_memory(ctx):
    own = adapted(ctx, targets=("q_proj",))
    layer = make(own)
    assert not layer.spec.adapted and not own.adapters.device.taken
    with pytest.raises(CheckpointError, match="--lora-target-modules leaves kv_b out"):
        own.adapters.own({"kv_b": factors(2)})


BAD = {
    "another model": (Factors(torch.zeros(2, LATENT), torch.zeros(ROWS + 1, 2)), "another model"),
    "a magnitude": (factors(2)._replace(magnitude=torch.ones(ROWS)), "a magnitude of kv_b"),
    "a whole matrix": (factors(2)._replace(whole=torch.ones(ROWS, LATENT)), "has a whole kv_b"),
    "a high rank": (factors(4), "rank is 4, above --max-lora-rank 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_served_is_named(ctx, case):
    own, (pair, said) = adapted(ctx), BAD[case]
    make(own)
    with pytest.raises(CheckpointError, match=said):
        own.adapters.own({"kv_b": pair})


def test_memory_is_counted_before_it_is_taken(ctx):
    own = adapted(ctx)
    make(own)
    each = 3 * (LATENT + HEADS * (NOPE + VALUE)) * 4
    assert own.adapters.device.taken == 2 * each + 2 * HEADS * 3 * 3 * 4
    pair = own.adapters.own({"kv_b": factors(3)})
    assert own.adapters.check_room("one", pair) == each
    small = replace(ctx.selector.facts, memory_bytes=own.adapters.device.taken - 1)
    with pytest.raises(MemoryLimitError, match="lower --max-loras"):
        make(replace(adapted(ctx), selector=Selector(SLOTS, [], small)))
