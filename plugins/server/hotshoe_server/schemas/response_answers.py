"""Answers of `/v1/responses`: the response, its items, and their parts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hotshoe.text.output_processor import RequestUpdate
from hotshoe_server.schemas.answers import TokenLogprob
from hotshoe_server.tool_servers import ToolInfo


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


class OutputToolList(Struct, tag_field="type", tag="mcp_list_tools"):
    """The tools of a server."""

    id: str
    server_label: str
    tools: list[Any]
    error: str | None = None

    @classmethod
    def of(cls, label: str, tools: Sequence[ToolInfo]) -> OutputToolList:
        """Return the item that tells of them."""
        listed = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)}
            for t in tools
        ]
        return cls(f"mcpl_{secrets.token_hex(12)}", label, listed)


class OutputToolCall(Struct, tag_field="type", tag="mcp_call"):
    """A call of a server's tool, and what it gave."""

    id: str
    status: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputToolList | OutputToolCall


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

    def add(self, update: RequestUpdate, num_reasoning_tokens: int) -> None:
        """Count a round that has ended."""
        self.input_tokens += update.num_prompt_tokens
        self.input_tokens_details.cached_tokens += update.num_cached_tokens
        self.output_tokens += update.num_generated_tokens
        self.output_tokens_details.reasoning_tokens += num_reasoning_tokens
        self.total_tokens = self.input_tokens + self.output_tokens


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
    max_tool_calls: int | None = None
    conversation: dict[str, str] | None = None


class DeletedResponse(Struct, tag_field="object", tag="response.deleted"):
    """A response that is no longer stored."""

    id: str
    deleted: bool = True
