"""What holds of every format: cuts change nothing, no text is lost, and no text raises."""

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotshoe.plugins import PluginManager
from hotshoe.text.parsing import (
    ContentDelta,
    MalformedCall,
    ParseContext,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.text.response import HOOKS
from hotshoe_parsers import plugin

SETTINGS = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_the_installed_plugin_offers_every_format() -> None:
    plugins = PluginManager()
    assert plugins.mapping(HOOKS["tool"]) == plugin.TOOL_FORMATS
    assert plugins.mapping(HOOKS["reasoning"]) == plugin.REASONING_FORMATS


def test_every_format_is_documented(any_format, request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs/reference/parsers.md").read_text(encoding="utf-8")
    calls, reasoning = page.split("## Reasoning")
    if ":tool:" in request.node.name.replace("[", ":"):
        kept = "no"
        if any_format.calls is not None:
            kept = "one" if any_format.calls({}).separator is None else "yes"
        row = rf"\| `{any_format.name}` \| [^|]* \| {kept} \|\n"
        assert re.search(row, calls)
        assert any_format.keep_special_tokens
    else:
        assert f"| `{any_format.name}` |" in reasoning


def test_formats_bear_their_names(any_format, request: pytest.FixtureRequest) -> None:
    assert f":{any_format.name}]" in request.node.name
    assert len(set(any_format.markers)) == len(any_format.markers)
    assert any_format.template_marks


@SETTINGS
@given(data=st.data())
def test_cuts_change_nothing(any_format, run, hostile_texts, cuts, data) -> None:
    text = data.draw(hostile_texts(any_format))
    prompt = data.draw(st.sampled_from(["", *any_format.reasoning_begins]))
    whole = run(any_format, [text], prompt)
    assert run(any_format, data.draw(cuts(text)), prompt) == whole
    assert run(any_format, text, prompt) == whole


@SETTINGS
@given(data=st.data())
def test_events_are_well_formed(any_format, run, hostile_texts, data, tools) -> None:
    is_open, count = None, 0
    for event in run(any_format, [data.draw(hostile_texts(any_format))]):
        match event:
            case ToolCallStart(index, name):
                assert is_open is None and index == count and name in tools
                is_open, count = index, count + 1
            case ToolCallArguments(index, delta):
                assert index == is_open and delta
            case ToolCallEnd(index):
                assert index == is_open
                is_open = None
            case MalformedCall(_, reason, index):
                assert index == is_open and reason
                is_open = None
            case ContentDelta(text) | ReasoningDelta(text):
                assert text and is_open is None
    assert is_open is None


@SETTINGS
@given(data=st.data())
def test_no_text_is_lost(any_format, run, hostile_texts, data) -> None:
    """Without a whole call, all but markers and the white space around them comes out again."""
    text = data.draw(hostile_texts(any_format))
    events = run(any_format, [text], tools={})
    assert not any(isinstance(event, ToolCallStart) for event in events)
    shown = "".join(getattr(event, "text", "") for event in events)
    # A header of the Harmony format has words between its markers.
    words = re.findall(r"[^<>|\s]+(?=[^<>|]*<\|(?:message|constrain|channel))", text)
    headers = words if any_format.name == "harmony" else []
    assert is_rest(shown, text, (*any_format.markers, *headers))


def is_rest(shown: str, text: str, markers: tuple[str, ...]) -> bool:
    """Whether `shown` is `text` without some of its markers and white space."""
    reached = {0}  # places of `text` that the characters of `shown` so far may have led to
    longest = sorted(markers, key=len)

    def skip(places: set[int]) -> set[int]:
        todo, found = list(places), set(places)
        while todo:
            at = todo.pop()
            steps = [len(m) for m in longest if text.startswith(m, at)]
            steps += [1] if text[at : at + 1].isspace() else []
            for place in {at + step for step in steps} - found:
                found.add(place)
                todo.append(place)
        return found

    for char in shown:
        reached = {at + 1 for at in skip(reached) if text[at : at + 1] == char}
    return len(text) in skip(reached)


@pytest.mark.parametrize("unit", ["x", "\n", "<", '{"name": "now", "arguments": {}}', "[1,"])
def test_time_is_linear_in_characters(any_format, unit: str) -> None:
    """Four times the text in pieces of one character takes four times as long, or nearly."""

    def seconds(length: int) -> float:
        opening = any_format.markers[0]
        text = (opening + unit * (length // len(unit)))[:length]
        begin = time.process_time()
        run_by_characters(any_format, text)
        return time.process_time() - begin

    # One pair that is not disturbed is enough; quadratic time fails them all.
    assert any(seconds(8_000) < 9 * seconds(2_000) for _ in range(9))


def run_by_characters(found, text: str) -> None:
    parser = found.open(ParseContext({"now": {}}))
    for char in text:
        parser.feed(char)
    parser.finish()
