"""What slot `graph` is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    SLOTS,
    Candidate,
    EmbeddingSpec,
    GraphSpec,
    SampleSpec,
    Selector,
    Verdict,
    accept,
    refuse,
)
from hotshoe.slots.graph import graph_spec, recordable
from hotshoe.slots.show import show_spec
from hotshoe.types.levels import DEFAULT_LEVEL, LEVELS

FACTS = DeviceFacts("test", "any", "a test's device", "any", 1 << 30, 1)


def whole_steps(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    return refuse("one piece only") if spec.pieces else accept(10)


def everything(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    return accept(5)


def own_operations(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    others = [name for name in spec.operations if not name.endswith("=own")]
    return refuse(f"not of {others}") if others or spec.pieces else accept(5)


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


def test_who_records_hears_whose_operations_a_step_calls() -> None:
    chooser = selector(own_operations)
    chooser._register(Candidate("embedding", "own", lambda spec, facts: accept(1), "any:Own"))
    for slot, spec in (("embedding", EmbeddingSpec(8, 4, "float32")), ("sample", SampleSpec(8))):
        chooser.decide(slot, spec)
    spec, said = graph_spec(chooser, 8)
    assert spec == GraphSpec(8, operations=("embedding=own",))
    assert chooser.offers("graph", spec) and said
    assert show_spec(spec) == "max_num_seqs=8"

    chooser.decisions["embedding", 5] = replace(
        chooser.decide("embedding", EmbeddingSpec(8, 5, "float32")), chosen="reference"
    )
    spec, said = graph_spec(chooser, 8)
    assert spec.operations == ("embedding=own", "embedding=reference")
    assert not chooser.offers("graph", spec)
    assert "own_operations: not of ['embedding=reference']" in said


def test_weights_in_host_memory_end_no_piece_and_must_not_wait() -> None:
    config = EngineConfig(offload_weights="mlp")
    spec, said = recordable(selector(everything), config, asynchronous=True)
    assert spec is None and "the reference of transfer waits" in said
    fetching = Candidate("transfer", "own", lambda spec, facts: accept(1), "any:Transfer")
    offered = [Candidate("graph", "everything", everything, "any:Graph"), fetching]
    spec, said = recordable(Selector(SLOTS, offered, FACTS), config, asynchronous=True)
    assert spec is not None and not spec.pieces
    assert said == "of decode steps alone (weights in host memory)"


def test_code_of_a_model_that_waits_is_not_recorded() -> None:
    chosen, config, waits = selector(everything), EngineConfig(), ["code (a.py:3)", "more"]
    spec, said = recordable(chosen, config, True, waits)
    assert spec is None and said == "none recorded, as code (a.py:3) waits for the device"
    assert recordable(chosen, config, False, waits) == recordable(chosen, config, False)


@pytest.mark.parametrize(
    ("level", "spec", "said"),
    [
        (0, None, ""),
        (1, GraphSpec(8), "of decode steps alone (optimization_level 1)"),
        (2, GraphSpec(64, pieces=True), ""),
        (3, GraphSpec(64, pieces=True), ""),
    ],
)
def test_each_level_asks_for_what_its_row_says(
    level: int, spec: GraphSpec | None, said: str
) -> None:
    config = EngineConfig(optimization_level=level, max_num_seqs=64)
    assert recordable(selector(everything), config, asynchronous=True) == (spec, said)
    few = EngineConfig(optimization_level=level, max_num_seqs=4)
    wanted = None if spec is None else replace(spec, max_num_seqs=4)
    assert recordable(selector(everything), few, asynchronous=True) == (wanted, said)
    assert EngineConfig().optimization_level == DEFAULT_LEVEL
    row = LEVELS[level]
    assert (row.decodes, row.prompts) == (
        (0, False) if spec is None else (None if spec.pieces else spec.max_num_seqs, spec.pieces)
    )


def test_the_table_of_levels_is_in_the_help_and_on_its_page() -> None:
    text = EngineConfig.__dataclass_fields__["optimization_level"].metadata["help"]
    root = Path(__file__).parents[3]
    page = (root / "docs/how-to/operate.md").read_text(encoding="utf-8")
    for number, level in enumerate(LEVELS):
        assert f"{number}: {level}" in text
        assert f"| {number} | {level} |" in page
