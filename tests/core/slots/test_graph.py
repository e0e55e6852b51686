"""What slot `graph` is asked for."""

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Candidate, GraphSpec, Selector, Verdict, accept, refuse
from hotshoe.slots.graph import graph_spec

FACTS = DeviceFacts("test", "any", "a test's device", "any", 1 << 30, 1)


def whole_steps(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    return refuse("one piece only") if spec.pieces else accept(10)


def everything(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    return accept(5)


def selector(*judges, forced=None, require_native=False) -> Selector:
    offered = [Candidate("graph", judge.__name__, judge, "any:Graph") for judge in judges]
    return Selector(SLOTS, offered, FACTS, forced, require_native)


@pytest.mark.parametrize(
    ("chooser", "pieces", "hindrance"),
    [
        (selector(everything), True, ""),
        (selector(whole_steps, everything), True, ""),
        (selector(whole_steps), False, "whole_steps: one piece only"),
        (selector(), False, ""),
        (selector(whole_steps, require_native=True), False, "one piece only"),
        (
            selector(whole_steps, everything, forced={"graph": "whole_steps"}),
            False,
            "--kernel graph=whole_steps cannot serve",
        ),
        (selector(everything, forced={"graph": "reference"}), False, ""),
    ],
)
def test_pieces_are_asked_for_where_somebody_records_them(
    chooser: Selector, pieces: bool, hindrance: str
) -> None:
    spec, said = graph_spec(chooser, 8)
    assert spec == GraphSpec(8, pieces=pieces)
    assert hindrance in said and bool(said) == bool(hindrance)
    assert chooser.decisions == {}, "asking decides nothing"
