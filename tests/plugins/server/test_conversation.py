"""One call out of several: the first that holds, and no text is lost."""

from collections.abc import Sequence

from hotshoe.text.output_processor import OutputProcessor, SequenceUpdate
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.types import FinishReason, SamplingParams, TokenOutput
from hotshoe_server.conversation import Reader, ToolPlan


class Scripted:
    """A parser whose text is a number of prepared events."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def feed(self, text: str) -> Sequence[Event]:
        taken, self._events = self._events[: len(text)], self._events[len(text) :]
        return taken

    def finish(self) -> Sequence[Event]:
        return self._events


def gained(text: str, finished: bool, num_tokens: int = 1) -> SequenceUpdate:
    outputs = OutputProcessor(None)
    outputs.add("r", None, [0], SamplingParams())
    reason = FinishReason.STOP if finished else None
    [[update], _] = outputs.process([TokenOutput("r", [1] * num_tokens, finish_reason=reason)])
    update.sequences[0].new_text = text
    return update.sequences[0]


def call(index: int) -> list[Event]:
    start = ToolCallStart(index, f"id{index}", f"f{index}")
    return [start, ToolCallArguments(index, "{}"), ToolCallEnd(index)]


def test_without_a_parser_text_is_content() -> None:
    reader = Reader(None, ToolPlan(parallel=False))
    assert reader.plain
    assert reader.read(gained("", False)) == []
    assert reader.read(gained("hello", True)) == [ContentDelta("hello")]


def test_calls_in_parallel_all_pass() -> None:
    events = [*call(0), *call(1)]
    assert Reader(Scripted(*events), ToolPlan()).read(gained("x", True)) == events


def test_one_call_passes_alone() -> None:
    reader = Reader(Scripted(*call(0), ContentDelta("and"), *call(1)), ToolPlan(parallel=False))
    found = [event for step in range(8) for event in reader.read(gained("x", step == 7))]
    assert found == [*call(0), ContentDelta("and")]


def test_a_void_call_makes_room_for_the_next() -> None:
    void = [ToolCallStart(0, "id0", "f0"), MalformedCall("<tool", "no name", 0)]
    reader = Reader(Scripted(*void, *call(1), *call(2)), ToolPlan(parallel=False))
    assert reader.read(gained("x", True)) == [*void, *call(1)]


def test_text_of_a_later_malformed_call_is_not_lost() -> None:
    later = MalformedCall("<tool_call>{", "unfinished", 1)
    reader = Reader(
        Scripted(*call(0), ToolCallStart(1, "id1", "f1"), later), ToolPlan(parallel=False)
    )
    as_content = MalformedCall("<tool_call>{", "unfinished")
    assert reader.read(gained("x", True)) == [*call(0), as_content]


def test_malformed_text_after_the_call_makes_no_room() -> None:
    stray = MalformedCall("<tool_call>", "empty")
    reader = Reader(Scripted(*call(0), stray, *call(1)), ToolPlan(parallel=False))
    assert reader.read(gained("x", True)) == [*call(0), stray]


def test_tokens_up_to_the_last_that_gave_reasoning_count() -> None:
    reader = Reader(
        Scripted(
            ReasoningDelta("Hm."),
            ReasoningDelta("So"),
            ContentDelta("Yes"),
            ReasoningDelta("or"),
            ContentDelta("no"),
        ),
        ToolPlan(),
    )
    counts = []
    for text, num_tokens in (("", 1), ("x", 2), ("", 3), ("x", 1), ("x", 5), ("x", 2), ("x", 9)):
        reader.read(gained(text, False, num_tokens))
        counts.append(reader.num_reasoning_tokens)
    assert counts == [0, 3, 3, 7, 7, 9, 9]


def test_nothing_comes_after_the_end() -> None:
    reader = Reader(Scripted(ContentDelta("a")), ToolPlan())
    assert reader.read(gained("", True)) == [ContentDelta("a")]
    assert reader.read(gained("more", True)) == []
