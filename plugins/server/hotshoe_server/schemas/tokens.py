"""Requests and answers of `/tokenize`, `/detokenize` and `/inference/v1/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Struct
from pydantic import Field

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.schemas.answers import Answer, ChatLogprobs, PromptLogprobs, Usage
from hotshoe_server.schemas.base import Few, Schema, ShortText, Variables
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.parts import Message, Tool

MAX_TOKENS = 2**22
Nothing = Annotated[dict[str, Any] | None, Field(max_length=0)]


class TokenizeRequest(Schema):
    """Either a prompt or a conversation."""

    model: ShortText | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, max_length=65536, fail_fast=True)
    tools: list[Tool] | None = Field(None, max_length=4096, fail_fast=True)
    chat_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    chat_template_kwargs: Variables = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=4096, fail_fast=True)
    #: Default: for a prompt, where no template writes them.
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False

    # vLLM's, which must ask for nothing.
    mm_processor_kwargs: Nothing = None
    media_io_kwargs: Nothing = None


class TokenizeAnswer(Answer):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Schema):
    """Token ids."""

    model: ShortText | None = None
    tokens: list[int] = Field(max_length=MAX_TOKENS, fail_fast=True)
    skip_special_tokens: bool = False


class DetokenizeAnswer(Struct):
    """Text."""

    prompt: str


class TokenParams(Generation):
    """How tokens are generated from tokens."""

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "thinking_token_budget": (),
        "use_beam_search": (False,),
        "flat_logprobs": (False,),
        "skip_reading_prefix_cache": (False,),
        "vllm_xargs": ({},),
        "truncate_prompt_tokens": (),
    }
    EXTRA_ARGS: ClassVar[str] = "extra_args"

    logprobs: int | None = None
    detokenize: bool = False
    extra_args: Annotated[dict[str, Any] | None, Few] = None

    # vLLM's, of no effect here.
    output_kind: int | None = None
    skip_clone: bool | None = None

    # vLLM's, refused.
    flat_logprobs: bool | None = None
    skip_reading_prefix_cache: bool | None = None


class GenerateRequest(TokenParams):
    """Tokens in, tokens out: no text is made unless stop strings or `detokenize` want it.

    Parameters stand in `sampling_params`, as vLLM has them, or beside the tokens.
    """

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {**TokenParams.REFUSED, "features": ({},)}

    token_ids: list[int] = Field(max_length=MAX_TOKENS, fail_fast=True)
    inner: TokenParams | None = Field(None, alias="sampling_params")
    features: dict[str, Any] | None = None

    def joined(self) -> GenerateRequest:
        """Return the request with all parameters beside the tokens.

        Raises:
            RequestError: One is given in both places.
        """
        if (inner := self.inner) is None:
            return self
        if twice := inner.model_fields_set & self.model_fields_set:
            name = f"sampling_params.{min(twice)}"
            raise RequestError(f"{name} is given outside sampling_params as well", name)
        found = {name: getattr(inner, name) for name in inner.model_fields_set}
        return self.model_copy(update={**found, "inner": None})

    def params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return what the engine takes."""
        detokenize = self.detokenize or bool(self.stop)
        more |= {"detokenize": detokenize, "logprobs": self.logprobs}
        return self.sampling_params(defaults, **more)

    def checked_token_ids(self, vocab_size: int) -> list[int]:
        """Return the prompt.

        Raises:
            RequestError: It is empty, or an id lies outside the vocabulary.
        """
        if not self.token_ids:
            raise RequestError("token_ids may not be empty", "token_ids")
        for token_id in (min(self.token_ids), max(self.token_ids)):
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})",
                    "token_ids",
                )
        return self.token_ids


class GenerateChoice(Answer):
    """One sequence, or in a stream what is new of it."""

    index: int
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None = None
    text: str | None = None
    logprobs: ChatLogprobs | None = None


class GenerateAnswer(Answer):
    """A whole answer, or a piece of a stream."""

    request_id: str
    choices: list[GenerateChoice]
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None
