"""The MLP block: composed of three operations, or given whole to whoever serves it."""

import pytest
import torch
from tests.core.layers.conftest import FACTS

from hotshoe.errors import SelectionError
from hotshoe.layers import (
    PLAIN_ACTIVATIONS,
    BuildContext,
    GatedMLP,
    Matrix,
    OnlineFormat,
    PlainMLP,
    Section,
    Storage,
)
from hotshoe.slots import COMPOSED, SLOTS, Candidate, QuantSpec, Selector, accept, refuse
from hotshoe.slots.reference.mlp import GatedMlp

HIDDEN, INNER = 6, 10
PARTS = [("gate", INNER), ("up", INNER)]


class Whole(GatedMlp):
    """A candidate of its own that counts its calls."""

    def __init__(self, spec, facts):
        super().__init__(spec, facts)
        self.num_calls = 0

    def __call__(self, x):
        self.num_calls += 1
        return super().__call__(x)


def context(verdict=None, group=None, **forced):
    candidates = [Candidate("gated_mlp", "whole", lambda spec, facts: verdict, Whole)]
    selector = Selector(SLOTS, candidates if verdict else [], FACTS, forced=forced)
    return BuildContext(selector, "float32", "float32", 4, 32, communicator=group)


def build(ctx, **sides):
    gate_up = Matrix(ctx, PARTS, HIDDEN, bias=True)
    return GatedMLP(ctx, gate_up, Matrix(ctx, [("down", HIDDEN)], INNER, **sides), "silu")


def feed(ctx):
    torch.manual_seed(1)
    for name, expected in ctx.weights.expected.items():
        ctx.weights.feed(name, torch.randn(expected.shape))
    ctx.weights.check_complete()


def test_whole_and_composed_are_the_same() -> None:
    results = []
    for ctx in (context(), context(accept(1)), context(gated_mlp="reference")):
        layer = build(ctx)
        feed(ctx)
        x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(2))
        results.append(layer(x))
        assert sum(count() for count in ctx.weight_bytes) == 4 * (3 * INNER * HIDDEN + 2 * INNER)
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


@pytest.mark.parametrize("part", ["linear", "gated_activation"])
def test_a_part_that_is_asked_for_composes_the_block(part: str) -> None:
    ctx = context(accept(9), **{part: "reference"})
    build(ctx)
    [block] = [d for d in ctx.selector.decisions.values() if d.slot == "gated_mlp"]
    assert block.chosen == COMPOSED
    assert block.reason.endswith(f", as --kernel {part}=reference asks for a part")
    ctx = context(accept(9), **{part: "reference", "gated_mlp": "whole"})
    build(ctx)
    assert [d.chosen for d in ctx.selector.decisions.values()] == ["whole"]


def test_a_whole_block_asks_nobody_else() -> None:
    ctx = context(accept(1))
    layer = build(ctx)
    feed(ctx)
    layer(torch.randn(1, HIDDEN))
    [decision] = ctx.selector.decisions.values()
    assert (decision.slot, decision.chosen) == ("gated_mlp", "whole")
    assert layer._run.num_calls == 1


def test_the_decision_says_why_a_block_is_composed() -> None:
    ctx = context(refuse("too wide"))
    build(ctx)
    slots = [decision.slot for decision in ctx.selector.decisions.values()]
    assert slots == ["gated_mlp", "linear", "linear", "gated_activation"]
    first = next(iter(ctx.selector.decisions.values()))
    assert (first.chosen, first.native) == (COMPOSED, True)
    assert first.reason == "of linear and gated_activation"
    assert dict(first.others)["whole"].reason == "too wide"
    assert ctx.selector.uses[first.slot, first.spec] == 0


def test_what_is_forced_may_not_be_composed() -> None:
    with pytest.raises(SelectionError, match=r"gated_mlp=whole cannot serve .*: too wide"):
        build(context(refuse("too wide"), gated_mlp="whole"))
    ctx = context(accept(9), gated_mlp=COMPOSED)
    build(ctx)
    assert next(iter(ctx.selector.decisions.values())).chosen == COMPOSED


def test_ranks_add_up_what_a_whole_block_gives() -> None:
    class Group:
        def all_reduce(self, x, out):
            out += 100
            return out

    alone, ranked = context(accept(1)), context(accept(1), Group())
    plain, summed = build(alone), build(ranked, inputs=ranked.split("channels", Section(INNER)))
    for ctx in (alone, ranked):
        feed(ctx)
    x = torch.randn(2, HIDDEN)
    torch.testing.assert_close(summed(x), plain(x) + 100)


def test_what_the_layer_before_may_quantize() -> None:
    quant = QuantSpec("int8", "token", dynamic=True)

    method = OnlineFormat(Storage(QuantSpec("int8", "channel", online=True), quant))
    for ctx in (context(), context(accept(1))):
        ctx.format = method
        assert build(ctx).input_quant == quant


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("silu", torch.nn.functional.silu),
        ("gelu", torch.nn.functional.gelu),
        ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("relu", lambda x: x.clamp(min=0)),
        ("relu2", lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_without_gates(activation: str, function) -> None:
    ctx = context()
    up, down = (
        Matrix(ctx, [("up", INNER)], HIDDEN, bias=True),
        Matrix(ctx, [("down", HIDDEN)], INNER),
    )
    layer = PlainMLP(ctx, up, down, activation)
    given = {"up.weight": (INNER, HIDDEN), "up.bias": (INNER,), "down.weight": (HIDDEN, INNER)}
    given = {name: torch.randn(shape) for name, shape in given.items()}
    for name, tensor in given.items():
        ctx.weights.feed(name, tensor)
    ctx.weights.check_complete()
    x = torch.randn(3, HIDDEN)
    inner = function(x @ given["up.weight"].T + given["up.bias"])
    torch.testing.assert_close(layer(x), inner @ given["down.weight"].T)
    assert activation in PLAIN_ACTIVATIONS
