"""Events of a writer: joined deltas, numbered calls, trimmed white space."""

import pytest

from hotshoe.text.parsing import (
    ContentDelta,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe_parsers.writer import Writer


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_neighbors_are_joined(writer: Writer) -> None:
    writer.content("a")
    writer.content(" b")
    writer.reasoning("c")
    writer.reasoning("d")
    assert writer.take() == [ContentDelta("a b"), ReasoningDelta("cd")]
    assert writer.take() == []


def test_trailing_space_waits_for_what_follows(writer: Writer) -> None:
    writer.content("a \n")
    assert writer.take() == [ContentDelta("a")]
    writer.content("\t")
    assert writer.take() == []
    writer.content("b")
    assert writer.take() == [ContentDelta(" \n\tb")]


def test_trailing_space_stays_at_the_end(writer: Writer) -> None:
    writer.content("a ")
    writer.close()
    assert writer.take() == [ContentDelta("a ")]


def test_space_stays_with_its_kind(writer: Writer) -> None:
    writer.reasoning("a ")
    writer.content(" b")
    assert writer.take() == [ReasoningDelta("a "), ContentDelta(" b")]


def test_trim_takes_space_on_both_sides(writer: Writer) -> None:
    writer.reasoning("a \n")
    writer.trim()
    writer.content(" \n")
    writer.content(" \u00a0b ")
    writer.content("c")
    assert writer.take() == [ReasoningDelta("a"), ContentDelta("\u00a0b c")]


def test_calls_are_numbered_and_trimmed(writer: Writer) -> None:
    writer.content("a ")
    for name, call_id in (("f", None), ("g", "x")):
        writer.start(name, call_id)
        assert writer.in_call
        writer.arguments("{")
        writer.arguments("}")
        writer.end()
        assert not writer.in_call
        writer.content("\n")
    writer.content("b")
    assert writer.take() == [
        ContentDelta("a"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, "{}"),
        ToolCallEnd(0),
        ToolCallStart(1, "g", "x"),
        ToolCallArguments(1, "{}"),
        ToolCallEnd(1),
        ContentDelta("b"),
    ]


def test_arguments_are_given_out_as_they_come(writer: Writer) -> None:
    writer.start("f")
    writer.arguments('{"a')
    assert writer.take() == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a')]
    writer.arguments('": 1}')
    assert writer.take() == [ToolCallArguments(0, '": 1}')]


def test_a_malformed_call_keeps_the_space_before_it(writer: Writer) -> None:
    writer.content("a \n")
    writer.malformed("<f>", "why")
    writer.content(" b")
    assert writer.take() == [
        ContentDelta("a"),
        MalformedCall(" \n<f>", "why"),
        ContentDelta(" b"),
    ]


def test_a_malformed_call_that_has_begun_is_void_and_counted(writer: Writer) -> None:
    writer.content("a ")
    writer.start("f")
    writer.arguments("{")
    writer.malformed("<f>{", "why")
    writer.start("f")
    assert not [e for e in writer.take() if isinstance(e, ToolCallEnd)]
    writer.end()
    assert writer.take() == [ToolCallEnd(1)]


def test_a_response_does_not_end_inside_a_call(writer: Writer) -> None:
    writer.start("f")
    with pytest.raises(AssertionError, match="has not ended"):
        writer.close()
