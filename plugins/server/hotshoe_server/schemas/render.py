"""Requests rendered to token ids, and generated token ids to be read, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from hotshoe.types.sampling_params import MAX_N
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.answers import (
    Answer,
    ChatChunk,
    CompletionAnswer,
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)
from hotshoe_server.schemas.base import Schema, ShortList, ShortText
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.completions import CompletionRequest
from hotshoe_server.schemas.tokens import MAX_TOKENS

T = TypeVar("T")
#: Answers that are read at once.
MAX_ANSWERS = 1024


class RenderedRequest(Answer):
    """A request of `/inference/v1/generate`, ready to be sent."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0


class RivalRead(Schema):
    """A token that could have come; named `token_id:5`."""

    token: ShortText
    logprob: float
    bytes: ShortList[int] | None = None


class TokenRead(RivalRead):
    """A token that came, and its rivals."""

    top_logprobs: ShortList[RivalRead] = Field(default_factory=list)


class LogprobsRead(Schema):
    """A position each."""

    content: ShortList[TokenRead] | None = None
    refusal: None = None


class ChoiceRead(Schema):
    """One sequence of an answer of `/inference/v1/generate`."""

    index: int = 0
    token_ids: Annotated[list[int], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"] = "stop"
    stop_reason: str | int | None = None
    text: str | None = None
    logprobs: LogprobsRead | None = None


class AnswerRead(Schema):
    """An answer of `/inference/v1/generate`; its usage and prompt are counted elsewhere."""

    request_id: ShortText
    choices: Annotated[list[ChoiceRead], Field(min_length=1, max_length=MAX_N, fail_fast=True)]
    prompt_logprobs: ShortList[Any] | None = None
    usage: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class NewTokens(Schema):
    """What a chunk of a stream adds to one sequence."""

    index: int = 0
    token_ids: Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True)]
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"] | None = None
    stop_reason: str | int | None = None
    text: str | None = None
    logprobs: LogprobsRead | None = None


class UsageRead(Schema):
    """Counts of a chunk."""

    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    total_tokens: int | None = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None


class ChunkRead(Schema):
    """A chunk of a stream of `/inference/v1/generate`, of one sequence or of counts alone."""

    request_id: ShortText
    choices: Annotated[list[NewTokens], Field(max_length=1, fail_fast=True)]
    prompt_logprobs: ShortList[Any] | None = None
    usage: UsageRead | None = None
    kv_transfer_params: dict[str, Any] | None = None


class StreamState(Schema):
    """What the client carries from one chunk of a sequence to the next."""

    token_ids: Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True)] = Field(
        default_factory=list
    )
    started: bool = False

    def after(self, chunk: ChunkRead) -> dict[str, Any]:
        """Return it behind a chunk."""
        new = [token for choice in chunk.choices for token in choice.token_ids]
        started = self.started or bool(chunk.choices)
        return {"token_ids": [*self.token_ids, *new], "started": started}


class Derendered(Answer):
    """A chunk as chat or completions have it, and what to send with the next one."""

    chunk: ChatChunk | CompletionAnswer
    stream_state: dict[str, Any]


class Derendering(Schema):
    """What both kinds share."""

    model: ShortText | None = None
    stream: bool | None = None
    generate_chunk: ChunkRead | None = None
    stream_state: StreamState | None = None

    def chunk(self) -> ChunkRead:
        """Return the chunk to be read.

        Raises:
            ApiError: There is none.
        """
        return _given(self.generate_chunk, "generate_chunk", "with stream=true")


def _given(value: T | None, field: str, when: str) -> T:
    if value is None:
        raise ApiError("missing_required_parameter", f"{field} is missing {when}", field)
    return value


class DerenderChat(Derendering):
    """Read an answer as a message; the request says which tools and template it was made with."""

    generate_response: AnswerRead | None = None
    prompt_tokens: int | None = Field(None, ge=0)
    chat_request: ChatRequest | None = None

    def answer(self) -> AnswerRead:
        """Return the answer to be read.

        Raises:
            ApiError: There is none.
        """
        return _given(self.generate_response, "generate_response", "without stream=true")


class DerenderCompletion(Derendering):
    """Read answers as texts, one after another."""

    generate_responses: (
        Annotated[list[AnswerRead], Field(min_length=1, max_length=MAX_ANSWERS, fail_fast=True)]
        | None
    ) = None
    prompt_tokens: ShortList[Annotated[int, Field(ge=0)]] | None = None
    completion_request: CompletionRequest | None = None

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            ApiError: There is no answer, or the counts are not one for each.
        """
        answers = _given(self.generate_responses, "generate_responses", "without stream=true")
        if len(self.prompt_tokens or answers) != len(answers):
            message = "prompt_tokens has one count for each of generate_responses"
            raise ApiError("invalid_value", message, "prompt_tokens")


def usage_read(prompt: int, generated: int, reasoning: int = 0) -> Usage:
    """Return counts of an answer that somebody else has computed."""
    details = PromptTokensDetails(0), CompletionTokensDetails(reasoning)
    return Usage(prompt, generated, prompt + generated, *details)
