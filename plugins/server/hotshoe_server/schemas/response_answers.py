"""Answers of `/v1/responses`: the response, its items, and their parts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from hotshoe_server.schemas.answers import TokenLogprob


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Text of a reasoning section."""

    text: str


class OutputMessage(Struct, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: str
    role: str
    content: list[OutputText]


class OutputReasoning(Struct, tag_field="type", tag="reasoning"):
    """A reasoning section; there are no summaries here."""

    id: str
    status: str
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(Struct, tag_field="type", tag="function_call"):
    """A call."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputDetails(Struct):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    """Of the generated tokens, those inside reasoning sections."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Counts of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseAnswer(Struct, tag_field="object", tag="response"):
    """A response, at its end or on its way."""

    id: str
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    tools: list[Any]
    tool_choice: Any
    parallel_tool_calls: bool
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    completed_at: int | None = None
    background: bool = False
    conversation: dict[str, str] | None = None


class DeletedResponse(Struct, tag_field="object", tag="response.deleted"):
    """A response that is no longer stored."""

    id: str
    deleted: bool = True
