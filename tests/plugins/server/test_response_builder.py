"""Items of a response: opened, filled and closed in order, however the text was cut."""

from hypothesis import given
from hypothesis import strategies as st

from hotshoe.text.parsing import (
    ContentDelta,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe_server.response_builder import ResponseBuilder, as_message
from hotshoe_server.schemas.response_answers import OutputCall, OutputMessage, OutputReasoning


def built(events: list) -> tuple[ResponseBuilder, list]:
    builder = ResponseBuilder()
    told = builder.build(events)
    builder.close(told)
    return builder, told


def call(index: int, arguments: str = "{}") -> list:
    return [
        ToolCallStart(index, f"f{index}"),
        ToolCallArguments(index, arguments),
        ToolCallEnd(index),
    ]


def test_kinds_become_items() -> None:
    events = [ReasoningDelta("Hm."), ContentDelta("Yes"), *call(0), ContentDelta("\n"), *call(1)]
    builder, _ = built(events)
    kinds = [type(item) for item in builder.items]
    assert kinds == [OutputReasoning, OutputMessage, OutputCall, OutputCall]
    assert {item.status for item in builder.items} == {"completed"}
    message = as_message(builder.items)
    assert (message["content"], message["reasoning_content"]) == ("Yes", "Hm.")
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["f0", "f1"]


def test_several_thoughts_are_kept() -> None:
    builder, _ = built([ReasoningDelta("Hm."), *call(0), ReasoningDelta("So."), *call(1)])
    assert as_message(builder.items)["reasoning_content"] == "Hm.\nSo."


def test_a_call_that_breaks_off_is_incomplete() -> None:
    start = [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a')]
    builder, _ = built([*start, MalformedCall("<call>", "cut off", 0)])
    [item] = builder.items
    assert (item.status, item.arguments) == ("incomplete", '{"a')
    assert "tool_calls" not in as_message(builder.items)
    builder, _ = built([MalformedCall("<call>", "no name")])
    assert builder.items[0].content[0].text == "<call>"


pieces = st.one_of(
    st.builds(ContentDelta, st.text("ab \n", min_size=1, max_size=3)),
    st.builds(ReasoningDelta, st.text("cd", min_size=1, max_size=3)),
    st.integers(0, 3).map(call),
)


@given(st.lists(pieces, max_size=12))
def test_events_add_up_to_the_items(found: list) -> None:
    events = [e for piece in found for e in (piece if isinstance(piece, list) else [piece])]
    builder, told = built(events)
    added = [data for name, data in told if name == "response.output_item.added"]
    done = [data for name, data in told if name == "response.output_item.done"]
    assert [data["output_index"] for data in added] == list(range(len(builder.items)))
    assert [data["item"] for data in done] == builder.items
    deltas = [
        "".join(d["delta"] for n, d in told if n.endswith("delta") and d["output_index"] == i)
        for i in range(len(builder.items))
    ]
    for item, text in zip(builder.items, deltas, strict=True):
        assert text == (item.arguments if isinstance(item, OutputCall) else item.content[0].text)
    content = "".join(e.text for e in events if isinstance(e, ContentDelta))
    shown = "".join(i.content[0].text for i in builder.items if isinstance(i, OutputMessage))
    assert shown.split() == content.split() or len(builder.items) > 1
