"""Adapters of experts: factors of all experts become those of each, and memory is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers import AdapterLimits, AdapterTable, BuildContext, Changes
from hotshoe.layers.adapters import Factors
from hotshoe.layers.expert_adapters import AdaptedExperts
from hotshoe.layers.experts import Share, share_of
from hotshoe.layers.formats import Share as Part
from hotshoe.slots import SLOTS, Candidate, LinearSpec, MoeSpec, RouterSpec, Selector, accept
from hotshoe.slots.reference.lora import build
from hotshoe.slots.reference.moe import Moe
from hotshoe.types.mesh import Axis

COUNT, RANK = 3, 2
ALL = slice(None)
#: The reference under a name of its own.
NATIVE = Candidate("lora", "own", lambda spec, facts: accept(1), build)


def experts(
    ctx: BuildContext,
    sizes: tuple[int, int],
    interleaved: bool = False,
    table: AdapterTable | None = None,
    owners: Tensor | None = None,
) -> AdaptedExperts:
    """Build what adapts gated experts of such sizes, which have names "0.gate" and so on; others,
    of which one is "9.gate", are elsewhere."""
    hidden, inner = sizes
    gate_up = LinearSpec(hidden, 2 * inner, "float32")
    down = LinearSpec(inner, hidden, "float32")
    spec = MoeSpec(gate_up, down, COUNT, 1, "silu", RouterSpec())
    whole = [
        (
            number,
            [(f"{number}.{side}", inner, Part((slice(0, inner),), ALL)) for side in ("gate", "up")],
            (f"{number}.down", hidden, Part((slice(0, hidden),), ALL)),
        )
        for number in range(COUNT)
    ]
    table = table or AdapterTable(AdapterLimits(1, RANK))
    own = replace(ctx, adapters=table, weight_bytes=[])
    op = own.selector.choose("moe", spec)
    layer = AdaptedExperts(own, spec, op, whole, ("all",), interleaved, owners)
    layer.hear_of(["9.gate"])
    return layer


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


@pytest.fixture
def recordable(ctx: BuildContext, monkeypatch: pytest.MonkeyPatch) -> BuildContext:
    """A context whose experts can be recorded."""
    monkeypatch.setattr(Moe, "recordable", True, raising=False)
    return replace(ctx, selector=Selector(SLOTS, [NATIVE], ctx.selector.facts))


LOW = Factors(torch.randn(RANK, 8), torch.randn(5, RANK))


@pytest.mark.parametrize("name", ["0.gate", "9.gate"])
def test_ranks_record_alike_whosever_experts_change(recordable: BuildContext, name: str) -> None:
    """All take the memory, and call the steps the same."""
    table = AdapterTable(AdapterLimits(1, RANK))
    layers = [experts(recordable, (8, 5), table=table) for _ in range(2)]
    plain = (Changes.NOTHING, Changes.LINEAR)
    assert table.recordable() == plain
    table.load("one", table.own({name: LOW}))
    assert all(layer.is_open for layer in layers)
    assert table.recordable() == (*plain, Changes.EXPERTS)
    assert table.begin(["one"], [3], np.arange(3)) == Changes.EXPERTS
    assert layers[0].of(3) is not None
    table.drop("one")
    assert table.recordable() == (*plain, Changes.EXPERTS), "recordings stay"


def test_experts_that_are_not_recordable_are_in_no_recording(ctx: BuildContext) -> None:
    table = AdapterTable(AdapterLimits(1, RANK))
    layer = experts(ctx, (8, 5), table=table)
    table.load("one", table.own({"0.gate": LOW}))
    assert table.begin(["one"], [3], np.arange(3)) == Changes.APART
    assert layer.of(3) is not None and Changes.EXPERTS not in table.recordable()


def test_memory_is_given_back_where_all_of_it_does_not_fit(recordable: BuildContext) -> None:
    numbers = COUNT * RANK * (2 * (8 + 10) + 5 + 8)
    facts = replace(recordable.selector.facts, memory_bytes=2 * 4 * numbers - 1)
    selector = Selector(SLOTS, [NATIVE], facts)
    table = AdapterTable(AdapterLimits(1, RANK))
    layers = [experts(replace(recordable, selector=selector), (8, 5), table=table) for _ in "12"]
    with pytest.raises(MemoryLimitError, match="lower --max-loras"):
        table.load("one", table.own({"0.gate": LOW}))
    assert not any(layer.is_open for layer in layers)
    layers[0].open()  # the memory of one is there again


def test_a_place_is_an_adapters_part_of_one_expert(recordable: BuildContext) -> None:
    """None is where there is no adapter, or no expert here."""
    table = AdapterTable(AdapterLimits(2, RANK))
    layer = experts(recordable, (8, 5), table=table)
    layer._owners = torch.tensor([0, 1, 2, -(1 << 30)], dtype=torch.int32)
    for name in ("one", "two"):
        table.load(name, table.own({"0.gate": LOW}))
    table.begin(["two", None, "one"], [1, 1, 1], np.arange(3))
    at = {name: table._places[name] for name in ("one", "two")}
    tokens, chosen = torch.tensor([0, 0, 1, 2, 2, 0]), torch.tensor([2, 3, 1, 1, 3, 0])
    found = layer.places(table.uses[3], tokens, chosen).places
    assert found.dtype == torch.int32
    two, one = COUNT * at["two"], COUNT * at["one"]
    assert found.clamp(min=-1).tolist() == [two + 2, -1, -1, one + 1, -1, two]


def test_ranks_add_up_what_one_device_computes_wherever_experts_are(ctx: BuildContext) -> None:
    """Adapters stay where they are, and an expert that has two places has them in both."""
    hidden, inner, count = 8, 5, 7
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    weights = [{side: torch.randn(size) for side, size in sizes.items()} for _ in range(COUNT)]
    factors = {
        f"{number}.{side}": Factors(torch.randn(RANK, size[1]), torch.randn(size[0], RANK))
        for number in range(COUNT)
        for side, size in sizes.items()
    }
    x, logits = torch.randn(count, hidden), torch.randn(count, COUNT)

    def computed(share: Share) -> Tensor:
        table = AdapterTable(AdapterLimits(1, RANK))
        owners = share.owners if share.moves else None
        layer = experts(ctx, (hidden, inner), table=table, owners=owners)
        op = Moe(replace(layer._spec, held=share.held), ctx.selector.facts)
        where = range(COUNT) if owners is None else owners[:-1].tolist()
        for place, number in enumerate(where):
            own = weights[number]
            op.load_gate_up(place, {"weight": [own["gate"], own["up"]]})
            op.load_down(place, {"weight": [own["down"]]})
        table.load("one", factors)
        table.begin(["one", None], [5, 2], np.arange(count))
        between = layer.of(count)
        assert between is not None
        return op.adapted(x, logits, None, share.placement, between)

    wanted = computed(Share(tuple(range(COUNT))))
    shares = [share_of(COUNT, Axis(rank, 2), "cpu", redundant=1) for rank in range(2)]
    for everywhere in (None, [[2, 0], [0, 1]], [[1, 2], [1, 0]]):
        for rank, share in enumerate(shares):
            if everywhere is not None:
                share.place(torch.tensor(everywhere), rank)
        added = sum(map(computed, shares))  # of numbers around 100, which may nearly cancel
        torch.testing.assert_close(added, wanted, rtol=1e-5, atol=1e-4)
