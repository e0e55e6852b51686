"""Fields that several endpoints share, and what unknown and unsupported ones mean.

The rule: a field that nobody knows is refused by name. A field of OpenAI's that changes nothing
here is accepted and has no effect. A field whose effect this server cannot give is
refused by name unless it has a value that asks for nothing. Null always means "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.base import Few, Schema, ShortList, ShortText, Texts
from hotshoe_server.schemas.grammar import StructuredOutputs


class StreamOptions(Schema):
    """How to stream: with a last chunk that counts tokens, or with counts in every chunk."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool = False


class Generation(Schema):
    """What every endpoint that generates accepts."""

    #: Fields that must be absent, or ask for nothing; with the values that do.
    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: SamplingParams' name -> the field's, where they differ.
    RENAMED: ClassVar[Mapping[str, str]] = {}
    DEFAULT_MAX_TOKENS: ClassVar[int | None] = None

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
    structured_outputs: StructuredOutputs | None = None
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)
    return_token_ids: bool = False

    # OpenAI's, of no effect here.
    user: ShortText | None = None

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
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        return SamplingParams(**values | more)

    def _refuse_unsupported(self) -> None:
        for name, harmless in self.REFUSED.items():
            value = getattr(self, name)
            if value is not None and value not in harmless:
                raise ApiError(
                    "unsupported_parameter", f"{name} is not supported here; leave it out", name
                )
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true", "stream_options")


_SAMPLING = (
    *("n", "temperature", "top_p", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"),
    *("min_tokens", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("skip_special_tokens", "bad_words", "allowed_token_ids", "prompt_logprobs"),
)


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    if not all(name.isascii() and name.isdecimal() and len(name) < 20 for name in biases):
        raise RequestError("logit_bias maps token ids to numbers", "logit_bias")
    return {int(name): bias for name, bias in biases.items()}
