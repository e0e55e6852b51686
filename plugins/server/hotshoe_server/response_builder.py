"""From a parser's events to the items of a response, and to the events that tell of them.

One builder serves whole answers and streams: a whole answer is what a stream's events say in the
end. An item is opened when something of its kind comes, and closed when something else does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe_server.chat_stream import new_call_id
from hotshoe_server.schemas.answers import TokenLogprob
from hotshoe_server.schemas.response_answers import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputToolCall,
    OutputToolList,
    ReasoningText,
)

#: An event's name and what it has beside its sequence number.
Told = tuple[str, dict[str, Any]]


class ResponseBuilder:
    """Builds the output of one response.

    Args:
        labels: The servers of tools that this server calls itself, by the tools' names.

    Attributes:
        items: As far as they have come; their texts are filled in when they close.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = labels or {}
        self.items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._parts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def build(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[Told]:
        """Take what a parser found; return what to tell.

        Args:
            events: What was found.
            logprobs: Of the tokens that gave it. They go to the text of a message that comes with
                them or next; those of reasoning, of calls and of the end mark are left out.
        """
        told: list[Told] = []
        self._logprobs += logprobs
        for event in events:
            match event:
                case ContentDelta(text) | MalformedCall(text, index=None):
                    self._write(OutputMessage, "response.output_text.delta", text, told)
                case ReasoningDelta(text):
                    self._write(OutputReasoning, "response.reasoning_text.delta", text, told)
                case ToolCallStart(_, name, call_id):
                    self.close(told)
                    found = call_id or new_call_id()
                    label, state = self._labels.get(name), "in_progress"
                    if label is None:
                        self._begin(OutputCall(_id("fc"), state, found, name, ""), told)
                    else:
                        self._begin(OutputToolCall(_id("mcp"), state, label, name, ""), told)
                case ToolCallArguments(_, text):
                    kind, named = OutputCall, "function_call"
                    if isinstance(self._open, OutputToolCall):
                        kind, named = OutputToolCall, "mcp_call"
                    self._write(kind, f"response.{named}_arguments.delta", text, told)
                case ToolCallEnd():
                    self.close(told)
                case MalformedCall():  # its beginning has been told already
                    self.close(told, "incomplete")
        if events:
            self._logprobs = []
        return told

    def close(self, told: list[Told], status: str = "completed") -> None:
        """Close the open item, if there is one."""
        item = self._open
        if item is None:
            return
        text, self._parts, self._open = "".join(self._parts), [], None
        at = {"item_id": item.id, "output_index": len(self.items) - 1}
        match item:
            case OutputCall():
                item.arguments = text
                whole = {**at, "name": item.name, "arguments": text}
                told.append(("response.function_call_arguments.done", whole))
            case OutputToolCall():
                item.arguments = text
                told.append(("response.mcp_call_arguments.done", {**at, "arguments": text}))
                if status == "completed":
                    return  # it waits for what the server says
            case OutputMessage():
                item.content[0].text = text
                logprobs = item.content[0].logprobs
                whole = {**at, "content_index": 0, "text": text, "logprobs": logprobs}
                told.append(("response.output_text.done", whole))
                told.append(("response.content_part.done", self._part(item)))
            case OutputReasoning():
                item.content[0].text = text
                whole = {**at, "content_index": 0, "text": text}
                told.append(("response.reasoning_text.done", whole))
                told.append(("response.content_part.done", self._part(item)))
        item.status = status
        index = at["output_index"]
        told.append(("response.output_item.done", {"output_index": index, "item": item}))

    def listed(self, items: Iterable[OutputToolList]) -> list[Told]:
        """Begin with lists of tools; return what to tell."""
        told: list[Told] = []
        for item in items:
            self.items.append(item)
            at = {"output_index": len(self.items) - 1}
            told.append(("response.output_item.added", {**at, "item": item}))
            told += [
                (f"response.mcp_list_tools.{state}", {**at, "item_id": item.id})
                for state in ("in_progress", "completed")
            ]
            told.append(("response.output_item.done", {**at, "item": item}))
        return told

    def settle(self, item: OutputToolCall, text: str, failed: bool) -> list[Told]:
        """Close a call with what the server said; return what to tell."""
        item.status = "failed" if failed else "completed"
        item.output, item.error = (None, text) if failed else (text, None)
        at = {"output_index": self.items.index(item)}
        return [
            (f"response.mcp_call.{item.status}", {**at, "item_id": item.id}),
            ("response.output_item.done", {**at, "item": item}),
        ]

    def _write(self, kind: type[OutputItem], name: str, text: str, told: list[Told]) -> None:
        if not isinstance(self._open, kind):
            if not text.strip() and self.items:
                return  # white space between items is no message
            self.close(told)
            self._begin(_new_item(kind), told)
        assert self._open is not None
        self._parts.append(text)
        delta: dict[str, Any] = {
            "item_id": self._open.id,
            "output_index": len(self.items) - 1,
            "delta": text,
        }
        if kind not in _CALLS:
            delta["content_index"] = 0
        if isinstance(self._open, OutputMessage):
            delta["logprobs"] = self._logprobs
            self._open.content[0].logprobs += self._logprobs
            self._logprobs = []
        told.append((name, delta))

    def _begin(self, item: OutputItem, told: list[Told]) -> None:
        self.items.append(item)
        self._open = item
        bare = _without_content(item)
        index = len(self.items) - 1
        told.append(("response.output_item.added", {"output_index": index, "item": bare}))
        if isinstance(item, OutputToolCall):
            at = {"item_id": item.id, "output_index": index}
            told.append(("response.mcp_call.in_progress", at))
        elif not isinstance(item, OutputCall):
            told.append(("response.content_part.added", self._part(item)))

    def _part(self, item: OutputMessage | OutputReasoning) -> dict[str, Any]:
        return {
            "item_id": item.id,
            "output_index": len(self.items) - 1,
            "content_index": 0,
            "part": item.content[0],
        }


#: Items without content.
_CALLS = (OutputCall, OutputToolCall)


def _new_item(kind: type[OutputItem]) -> OutputItem:
    if kind is OutputReasoning:
        return OutputReasoning(_id("rs"), "in_progress", [], [ReasoningText("")])
    assert kind is OutputMessage, "arguments come after the start of their call"
    return OutputMessage(_id("msg"), "in_progress", "assistant", [OutputText("", [], [])])


def _without_content(item: OutputItem) -> OutputItem:
    if isinstance(item, _CALLS):
        return item
    if isinstance(item, OutputMessage):
        return OutputMessage(item.id, item.status, item.role, [])
    return OutputReasoning(item.id, item.status, [], [])


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def as_message(items: Iterable[OutputItem]) -> dict[str, Any]:
    """Return the output as chat's message, for a conversation that goes on from it."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    thoughts: list[str] = []
    for item in items:
        match item:
            case OutputMessage():
                message["content"] += item.content[0].text
            case OutputReasoning():
                thoughts.append(item.content[0].text)
            case OutputToolCall(status="completed" | "failed") | OutputCall(status="completed"):
                function = {"name": item.name, "arguments": item.arguments}
                own = item.id if isinstance(item, OutputToolCall) else item.call_id
                call = {"id": own, "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
    return message | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})


def answers_of(items: Iterable[OutputItem]) -> list[dict[str, Any]]:
    """Return what servers' tools said, as chat's messages that follow the message of the calls."""
    return [
        {"role": "tool", "tool_call_id": item.id, "content": item.output or item.error or ""}
        for item in items
        if isinstance(item, OutputToolCall) and item.status in ("completed", "failed")
    ]
