"""Adapters of experts: factors of all experts become those of each, and memory is counted."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext
from hotshoe.layers.adapters import Factors
from hotshoe.layers.expert_adapters import AdaptedExperts
from hotshoe.layers.formats import Share
from hotshoe.slots import SLOTS, LinearSpec, MoeSpec, RouterSpec, Selector

COUNT, RANK = 3, 2
ALL = slice(None)


def experts(
    ctx: BuildContext, sizes: tuple[int, int], interleaved: bool = False, moves: bool = False
) -> AdaptedExperts:
    """Build what adapts gated experts of such sizes, which have names "0.gate" and so on."""
    hidden, inner = sizes
    gate_up = LinearSpec(hidden, 2 * inner, "float32")
    down = LinearSpec(inner, hidden, "float32")
    spec = MoeSpec(gate_up, down, COUNT, 1, "silu", RouterSpec())
    whole = [
        (
            number,
            [
                (f"{number}.{side}", inner, Share((slice(0, inner),), ALL))
                for side in ("gate", "up")
            ],
            (f"{number}.down", hidden, Share((slice(0, hidden),), ALL)),
        )
        for number in range(COUNT)
    ]
    own = replace(ctx, adapters=AdapterTable(AdapterLimits(1, RANK)), weight_bytes=[])
    op = own.selector.choose("moe", spec)
    return AdaptedExperts(own, spec, op, whole, ("all",), interleaved, moves)


def factors(inputs: int, outputs: int) -> Factors:
    a, b = torch.randn(COUNT * RANK, inputs), torch.randn(outputs, RANK * COUNT)
    return Factors(a, b, experts=COUNT)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_of_all_experts_is_split(
    ctx: BuildContext, interleaved: bool, turned: bool
) -> None:
    layer = experts(ctx, (8, 5), interleaved)
    whole = factors(10, 8) if turned else factors(8, 10)
    found = layer.split("all", whole)
    assert list(found) == [f"{n}.{side}" for n in range(COUNT) for side in ("gate", "up")]
    for number in range(COUNT):
        a = whole.a[number * RANK : (number + 1) * RANK]
        delta = whole.b[:, number::COUNT] @ a
        delta = delta.T if turned else delta
        sides = (delta[::2], delta[1::2]) if interleaved else delta.chunk(2)
        for side, wanted in zip(("gate", "up"), sides, strict=True):
            part = found[f"{number}.{side}"]
            torch.testing.assert_close(part.b @ part.a, wanted)
    assert list(layer.split("all", factors(5, 8))) == [f"{n}.down" for n in range(COUNT)]


def test_what_does_not_say_which_tensor_it_is_of_is_refused(ctx: BuildContext) -> None:
    with pytest.raises(
        CheckpointError, match="no tensor of this model's experts, or more than one"
    ):
        experts(ctx, (8, 4)).split("all", factors(8, 8))  # gates and ups, or those transposed
    with pytest.raises(CheckpointError, match="2 experts of all, but this model has 3"):
        experts(ctx, (8, 5)).split("all", factors(8, 10)._replace(experts=2))


def test_what_cannot_be_computed_is_refused(ctx: BuildContext) -> None:
    layer, part = experts(ctx, (8, 5)), Factors(torch.randn(2, 8), torch.randn(5, 2))
    layer.check("0.gate", 0, part, RANK)
    with pytest.raises(CheckpointError, match=r"magnitude \(DoRA\) or a whole matrix of 0.gate"):
        layer.check("0.gate", 0, part._replace(magnitude=torch.ones(5)), RANK)
    with pytest.raises(CheckpointError, match="this model's matrix is"):
        layer.check("0.down", 2, part, RANK)
    in_one_call = experts(ctx, (8, 5))
    in_one_call._adaptable = False
    with pytest.raises(CheckpointError, match=r"expert's matrix.*--kernel moe=reference"):
        in_one_call.check("0.gate", 0, part, RANK)
    with pytest.raises(CheckpointError, match="start without --enable-eplb"):
        experts(ctx, (8, 5), moves=True).check("0.gate", 0, part, RANK)


def test_memory_is_taken_with_the_first_adapter(ctx: BuildContext) -> None:
    numbers = COUNT * RANK * (2 * (8 + 10) + 5 + 8)
    for spare in (0, -1):
        facts = replace(ctx.selector.facts, memory_bytes=4 * numbers + spare)
        layer = experts(replace(ctx, selector=Selector(SLOTS, [], facts)), (8, 5))
        part = Factors(torch.randn(2, 8), torch.randn(5, 2))
        if spare:
            with pytest.raises(MemoryLimitError, match="lower --max-loras"):
                layer.own_part(0, part)
        else:
            layer.own_part(0, part)
