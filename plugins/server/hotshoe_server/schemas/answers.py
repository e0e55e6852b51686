"""Answers of the completion endpoints and what they share.

Written by msgspec, which leaves out what has its default; so a field that OpenAI always gives has
none. A constant such as `"object"` is the tag of its class.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class Answer(Struct, omit_defaults=True):
    """A JSON object to be written."""


class PromptTokensDetails(Struct):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """Of the generated tokens, those inside reasoning sections."""

    reasoning_tokens: int


class Usage(Struct):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ErrorDetail(Struct):
    """See `hotshoe_server.errors`."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Struct):
    """The body of every error."""

    error: ErrorDetail


#: For each position of the prompt: likely tokens by id; the first position has none.
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class CompletionLogprobs(Struct):
    """Parallel lists, a position each; the first prompt token has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One text. `stop_reason` is the stop string or token id that ended it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionAnswer(Answer, tag_field="object", tag="text_completion"):
    """A whole answer, or a chunk of a stream, where `usage` may be null until the last one."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class TopLogprob(Struct):
    """A token that could have come; `bytes` are exact where text cannot show them."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    """A token that came, and its rivals."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """A position each."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionAnswer(Answer):
    """The function that is called; a chunk may have arguments alone."""

    name: str | None = None
    arguments: str | None = None


class ToolCallAnswer(Struct, tag_field="type", tag="function"):
    """A call."""

    id: str
    function: FunctionAnswer


class MessageAnswer(Answer, tag_field="role", tag="assistant"):
    """What the model says. A reasoning section comes under one of two names, or both."""

    content: str | None
    refusal: None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


class ChatChoice(Answer):
    """One message. `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatAnswer(Answer, tag_field="object", tag="chat.completion"):
    """A whole answer."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ToolCallDelta(Answer):
    """More of a call; its first chunk names it."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionAnswer | None = None


class Delta(Answer):
    """More of a message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(Answer):
    """What a chunk adds to one message."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(Answer, tag_field="object", tag="chat.completion.chunk"):
    """A piece of a streamed answer; `usage` may be null until the last one."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
