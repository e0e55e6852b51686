"""From a parser's events to the blocks of a message in Anthropic's form, and to its stream.

One builder serves whole answers and streams: a whole answer is what a stream's events say in the
end. A block is opened when something of its kind comes, and closed when something else does.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.types import FinishReason
from hotshoe_server.schemas.message_answers import (
    BlockOut,
    MessageUsage,
    TextOut,
    ThinkingOut,
    ToolUseOut,
)

#: The fields of an event.
Told = dict[str, Any]
_DELTAS: dict[type[BlockOut], tuple[str, str]] = {
    TextOut: ("text_delta", "text"),
    ThinkingOut: ("thinking_delta", "thinking"),
    ToolUseOut: ("input_json_delta", "partial_json"),
}


class MessageBuilder:
    """Builds the blocks of one message.

    Attributes:
        blocks: As far as they have come; what they hold is filled in when they close.
        called: A call was complete.
    """

    def __init__(self) -> None:
        self.blocks: list[BlockOut] = []
        self.called = False
        self._open: BlockOut | None = None
        self._parts: list[str] = []
        self._blanks = ""

    def build(self, events: Iterable[Event]) -> list[Told]:
        """Take what a parser found; return what to tell."""
        told: list[Told] = []
        for event in events:
            match event:
                case ContentDelta(text) | MalformedCall(text, index=None):
                    told += self._text(text)
                case ReasoningDelta(text):
                    told += self._begin(ThinkingOut("")) if not self._is(ThinkingOut) else []
                    told += self._add(text)
                case ToolCallStart(_, name, call_id):
                    found = call_id or f"toolu_{secrets.token_hex(12)}"
                    told += self._begin(ToolUseOut(found, name, {}))
                case ToolCallArguments(_, text) if self._is(ToolUseOut):
                    told += self._add(text)
                case ToolCallEnd():
                    self.called = True
                    told += self.close()
        return told

    def close(self) -> list[Told]:
        """Close what is open; return what to tell."""
        block, self._open = self._open, None
        if block is None:
            return []
        text, self._parts = "".join(self._parts), []
        match block:
            case TextOut():
                block.text = text
            case ThinkingOut():
                block.thinking = text
            case ToolUseOut():
                block.input = _object(text)
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _is(self, kind: type[BlockOut]) -> bool:
        return isinstance(self._open, kind)

    def _text(self, text: str) -> list[Told]:
        """Add text; blanks alone make no block, as between a thought and a call."""
        if self._is(TextOut):
            return self._add(text)
        text = self._blanks + text
        if not text.strip():
            self._blanks = text
            return []
        return [*self._begin(TextOut("")), *self._add(text)]

    def _begin(self, block: BlockOut) -> list[Told]:
        told = self.close()
        self._open, self._blanks = block, ""
        self.blocks.append(block)
        index, empty = len(self.blocks) - 1, msgspec.to_builtins(block)
        return [*told, {"type": "content_block_start", "index": index, "content_block": empty}]

    def _add(self, text: str) -> list[Told]:
        assert self._open is not None
        self._parts.append(text)
        name, field = _DELTAS[type(self._open)]
        index, delta = len(self.blocks) - 1, {"type": name, field: text}
        return [{"type": "content_block_delta", "index": index, "delta": delta}]


def _object(text: str) -> dict[str, Any]:
    """Return the arguments of a call; of one that was cut off, none."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def stop_of(sequence: SequenceUpdate, called: bool) -> tuple[str, str | None]:
    """Return Anthropic's word for an end, and the text that made it."""
    if sequence.finish_reason is not FinishReason.STOP:
        return "max_tokens", None
    if called:
        return "tool_use", None
    if isinstance(sequence.stop_reason, str):
        return "stop_sequence", sequence.stop_reason
    return "end_turn", None


def message_usage(update: RequestUpdate) -> MessageUsage:
    """Count tokens."""
    cached = update.num_cached_tokens
    return MessageUsage(update.num_prompt_tokens - cached, update.num_generated_tokens, cached)
