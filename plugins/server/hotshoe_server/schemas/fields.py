"""Fields that several endpoints share, and what unknown and unsupported ones mean.

The rule: a field that nobody knows is refused by name. A field of OpenAI's that changes nothing
here is accepted and has no effect. A field whose effect this server cannot give is
refused by name unless it has a value that asks for nothing. Null always means "not given".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hotshoe.errors import RequestError
from hotshoe.types import BeamSearchParams, SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.base import Few, Schema, ShortList, ShortText, Texts, Wishes
from hotshoe_server.schemas.foreign import FOREIGN, Foreign
from hotshoe_server.schemas.grammar import StructuredOutputs


class StreamOptions(Schema):
    """How to stream: with a last chunk that counts tokens, or with counts in every chunk."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool = False


def _not_zero(count: int) -> int:
    if count == 0:
        raise RequestError("truncate_prompt_tokens is a count, or -1", "truncate_prompt_tokens")
    return count


class Repetition(Schema):
    """vLLM's field `repetition_detection`; without a longest pattern, nothing is looked for."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def wanted(self) -> tuple[int, int, int] | None:
        """Return what the engine takes."""
        longest, least = self.max_pattern_size, self.min_pattern_size or 1
        return (longest, least, self.min_count) if longest else None


PromptTokens = Annotated[int, AfterValidator(_not_zero), Field(ge=-1)]
#: Where a prompt that is too long is cut off.
Side = Literal["left", "right"]
#: Of tokens to think with; -1 means that nothing bounds them.
Budget = Annotated[
    int, Field(ge=-1, le=2**31 - 1), AfterValidator(lambda count: None if count == -1 else count)
]
RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
#: Where requests of one kind or another say how many tokens they want at most.
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Generation(Foreign):
    """What every endpoint that generates accepts."""

    #: Fields that must be absent, or ask for nothing; with the values that do. Beside FOREIGN.
    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: SamplingParams' name -> the field's, where they differ.
    RENAMED: ClassVar[Mapping[str, str]] = {}
    DEFAULT_MAX_TOKENS: ClassVar[int | None] = None
    #: The field that has arguments of logits processors.
    EXTRA_ARGS: ClassVar[str] = "vllm_xargs"

    model: ShortText | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Texts | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, Few] = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: ShortList[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: ShortList[str] | None = None
    allowed_token_ids: ShortList[int] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: ShortList[int] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: Budget | None = None
    repetition_detection: Repetition | None = None
    vllm_xargs: Annotated[dict[str, Any] | None, Few] = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: RequestId | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    truncate_prompt_tokens: PromptTokens | None = None
    truncation_side: Side | None = None

    spaces_between_special_tokens: bool | None = None

    def adopt(self, force_usage: bool, as_token_ids: bool) -> None:
        """Ask for what the operator gives to every request.

        Args:
            force_usage: Streams end with a count of tokens.
            as_token_ids: Tokens of log probabilities are named by their ids.
        """
        self.return_tokens_as_token_ids |= as_token_ids
        if force_usage and self.stream:
            options = self.stream_options or StreamOptions()
            self.stream_options = options.model_copy(update={"include_usage": True})

    def sampling_params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return what the engine takes.

        Args:
            defaults: The model's, for what the request leaves open.
            more: Wins over the request.

        Raises:
            ApiError: A field is given whose effect this server cannot give.
            RequestError: A value is out of range; `field` names it.
        """
        self._refuse_unsupported()
        values: dict[str, Any] = {"max_tokens": None, **defaults}
        if self.DEFAULT_MAX_TOKENS is not None:
            values["max_tokens"] = self.DEFAULT_MAX_TOKENS
        for name in _SAMPLING:
            value = getattr(self, self.RENAMED.get(name, name))
            if value is not None:
                values[name] = value
        if self.repetition_detection is not None:
            values["repetition_detection"] = self.repetition_detection.wanted()
        if given := getattr(self, self.EXTRA_ARGS):
            values["extra_args"] = given
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        try:
            return SamplingParams(**values | more)
        except RequestError as error:
            raise self.renamed(error) from None

    def _check_search(self) -> None:
        """Refuse what a beam search cannot give.

        Raises:
            ApiError: It streams, or samples; the field is named.
        """
        for name in _NOT_SEARCHED:
            if getattr(self, name, None):
                message = f"{name} has no meaning in a beam search; leave it out"
                raise ApiError("unsupported_parameter", message, name)

    @property
    def beam_search(self) -> BeamSearchParams | None:
        """How to search; None where tokens are sampled."""
        if not self.use_beam_search:
            return None
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return BeamSearchParams(self.n or 1, None, bool(self.ignore_eos), length_penalty=penalty)

    def wishes(self) -> Wishes:
        """See `Schema.wishes`."""
        field = self.max_tokens_field
        return Wishes(
            request_id=self.request_id,
            cache_salt=self.cache_salt,
            beam_search=self.beam_search,
            no_spaces=self.spaces_between_special_tokens is False
            and self.skip_special_tokens is False,
            max_tokens_field=field,
            max_tokens=vars(self)[field] if field else None,
            prompt_tokens=self.truncate_prompt_tokens,
            keeps_end=self.truncation_side != "right",
        )

    @property
    def max_tokens_field(self) -> str | None:
        """Which field says how many tokens are wanted at most, if one does."""
        return next((name for name in MAX_TOKENS if getattr(self, name, None) is not None), None)

    def renamed(self, error: RequestError) -> RequestError:
        """Return an error of the engine's with the name that the field has in this request."""
        names = {
            **self.RENAMED,
            "beam_width": "n",
            "extra_args": self.EXTRA_ARGS,
            "max_tokens": self.max_tokens_field or "max_tokens",
        }
        if getattr(self, "top_logprobs", None) is not None:
            names["logprobs"] = "top_logprobs"
        old, *inner = (error.field or "").split(".", 1)
        new = names.get(old, old)
        text = re.sub(rf"\b{re.escape(old)}\b", new, str(error), count=1) if old else str(error)
        return RequestError(text, ".".join([new, *inner]) or None)

    def _refuse_unsupported(self) -> None:
        refused = {name: (values, "leave it out") for name, values in self.REFUSED.items()}
        for name, (harmless, remedy) in (FOREIGN | refused).items():
            value = getattr(self, name, None)
            if value is not None and value not in harmless:
                raise ApiError(
                    "unsupported_parameter", f"{name} is not supported here; {remedy}", name
                )
        if self.use_beam_search:
            self._check_search()
        elif self.length_penalty not in (None, 1.0):
            raise RequestError("length_penalty needs use_beam_search=true", "length_penalty")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true", "stream_options")


_SAMPLING = (
    *("n", "temperature", "top_p", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"),
    *("min_tokens", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("skip_special_tokens", "bad_words", "allowed_token_ids", "prompt_logprobs"),
    "logprob_token_ids",
)


#: What a beam search has no use for; its texts are the likeliest of the model itself.
_NOT_SEARCHED = (
    *("stream", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "top_k"),
    *("min_p", "min_tokens", "stop_token_ids", "bad_words", "allowed_token_ids", "logprobs"),
    *("prompt_logprobs", "structured_outputs", "response_format", "thinking_token_budget"),
    *("repetition_detection", "logprob_token_ids", "vllm_xargs"),
)


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    if not all(name.isascii() and name.isdecimal() and len(name) < 20 for name in biases):
        raise RequestError("logit_bias maps token ids to numbers", "logit_bias")
    return {int(name): bias for name, bias in biases.items()}
