"""Requests rendered to token ids, and generated token ids to be read, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hotshoe.types.sampling_params import MAX_N
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.answers import Answer
from hotshoe_server.schemas.base import Schema, ShortList, ShortText
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.completions import CompletionRequest
from hotshoe_server.schemas.tokens import MAX_TOKENS

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


class Derendering(Schema):
    """What both kinds share."""

    model: ShortText | None = None
    stream: bool | None = None

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            ApiError: Chunks of a stream are to be read.
        """
        if self.stream:
            message = "streams are not read here; read the whole answer, or stream the request"
            raise ApiError("unsupported_parameter", message, "stream")


class DerenderChat(Derendering):
    """Read an answer as a message; the request says which tools and template it was made with."""

    generate_response: AnswerRead
    prompt_tokens: int = Field(0, ge=0)
    chat_request: ChatRequest | None = None


class DerenderCompletion(Derendering):
    """Read answers as texts, one after another."""

    generate_responses: Annotated[
        list[AnswerRead], Field(min_length=1, max_length=MAX_ANSWERS, fail_fast=True)
    ]
    prompt_tokens: ShortList[Annotated[int, Field(ge=0)]] | None = None
    completion_request: CompletionRequest | None = None

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            ApiError: As above, or the counts are not one for each answer.
        """
        super().check()
        if len(self.prompt_tokens or self.generate_responses) != len(self.generate_responses):
            message = "prompt_tokens has one count for each of generate_responses"
            raise ApiError("invalid_value", message, "prompt_tokens")
