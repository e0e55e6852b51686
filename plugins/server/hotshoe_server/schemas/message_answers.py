"""Answers of `/v1/messages`, in Anthropic's form."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class MessageUsage(Struct):
    """Counts of tokens; those found in the prefix cache are not among `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextOut(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingOut(Struct, tag_field="type", tag="thinking"):
    """What the model thought. Nothing is signed here."""

    thinking: str
    signature: str = ""


class ToolUseOut(Struct, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


BlockOut = TextOut | ThinkingOut | ToolUseOut


class Message(Struct, tag_field="type", tag="message"):
    """What the model says; a stream begins with an empty one."""

    id: str
    model: str
    content: list[BlockOut]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    role: str = "assistant"


class TokenCount(Struct):
    """How many tokens a prompt has."""

    input_tokens: int
