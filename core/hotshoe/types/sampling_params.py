"""How a request wants its tokens chosen and its text ended.

Validation here bounds every value at parse time, so that no step can throw on request data.
Names and defaults follow the OpenAI and vLLM APIs where the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotshoe.errors import RequestError
from hotshoe.types.grammar import GrammarSpec

MAX_N = 64
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 1024
MAX_ALLOWED_TOKEN_IDS = 65536
MAX_EXTRA_ARGS = 64
MAX_SEED = 2**63 - 1
MAX_LENGTH = 2**31 - 1

_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
_LISTS = ("stop", "bad_words", "bad_words_token_ids", *_IDS)
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")
_FLOAT_RANGES: dict[str, tuple[float, float, bool]] = {  # lowest, highest, lowest is allowed
    "temperature": (0.0, 1000.0, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
    "repetition_penalty": (0.01, 100.0, True),  # dividing by less could overflow a logit
}
_INT_RANGES: dict[str, tuple[int, int, bool]] = {  # lowest, highest, may be None
    "n": (1, MAX_N, False),
    "top_k": (-1, MAX_LENGTH, False),
    "max_tokens": (1, MAX_LENGTH, True),
    "min_tokens": (0, MAX_LENGTH, False),
    "seed": (-1, MAX_SEED, True),
    "logprobs": (0, MAX_LENGTH, True),
    "prompt_logprobs": (0, MAX_LENGTH, True),
}
_COUNT_CAPS: dict[str, int] = {  # most entries
    "stop": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "logit_bias": MAX_LOGIT_BIAS,
    "bad_words": MAX_BAD_WORDS,
    "bad_words_token_ids": MAX_BAD_WORDS * 4,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
    "logprob_token_ids": MAX_STOP_TOKEN_IDS,
    "extra_args": MAX_EXTRA_ARGS,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request; `n` sequences are sampled from the same prompt.

    Attributes:
        temperature: 0 means greedy.
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        top_p: Keep the smallest set whose probability reaches this; 1 keeps all.
        min_p: Drop tokens less likely than this times the most likely one; 0 drops none.
        repetition_penalty: Divides positive and multiplies negative logits of tokens already in
            prompt or output. Source: Keskar et al. 2019, arXiv:1909.05858.
        max_tokens: Most tokens to generate; None means up to the model's length.
        min_tokens: Tokens that would end the text cannot be sampled before this many.
        stop: Strings that end the text; cut from it unless `include_stop_str_in_output`.
        seed: Makes this request's tokens reproducible whatever runs beside it; -1 is none.
        logprobs: Number of most likely tokens reported per generated token, beside the chosen.
        prompt_logprobs: The same for every prompt token but the first.
        logprob_token_ids: Reported per generated token as well, behind the most likely ones.
        logit_bias: Added to the logits of these token ids.
        bad_words: Strings whose token sequences are never completed.
        bad_words_token_ids: The same as token ids; the engine adds those of `bad_words`.
        allowed_token_ids: When given, no other token is sampled.
        grammar: What the text must conform to.
        adapter: Name of a loaded adapter (LoRA); None for the model itself.
        extra_args: Arguments of logits processors; `Argument` says how they are declared.
        repetition_detection: Longest and shortest pattern, and the count, that end a text.

    Raises:
        RequestError: A value is out of range; `field` names it.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    adapter: str | None = None
    repetition_detection: tuple[int, int, int] | None = None
    extra_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _LISTS:
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            message = f"logit_bias must map token ids to numbers, not {self.logit_bias!r}"
            raise RequestError(message, "logit_bias")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if not isinstance(self.extra_args, Mapping) or {*map(type, self.extra_args)} - {str}:
            raise RequestError("extra_args must map names to values", "extra_args")
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {value!r}", name)
        for name, bounds in _FLOAT_RANGES.items():
            _check_float(name, getattr(self, name), *bounds)
        for name, int_bounds in _INT_RANGES.items():
            _check_int(name, getattr(self, name), *int_bounds)
        for name, cap in _COUNT_CAPS.items():
            if len(getattr(self, name)) > cap:
                raise RequestError(f"{name} may have at most {cap} entries", name)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        self._check_contents()
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise RequestError(f"adapter must be a name, not {self.adapter!r}", "adapter")

    def _check_contents(self) -> None:
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_STRING_CHARS:
                    message = f"{name} takes strings of 1 to {MAX_STOP_STRING_CHARS} characters"
                    raise RequestError(message, name)
        for name in _IDS:
            for token_id in getattr(self, name):
                _check_int(name, token_id, 0, MAX_LENGTH, False)
        words = tuple(_frozen("bad_words_token_ids", word) for word in self.bad_words_token_ids)
        object.__setattr__(self, "bad_words_token_ids", words)
        if any(not 0 < len(word) <= MAX_BAD_WORD_TOKENS for word in words):
            message = f"bad_words_token_ids takes sequences of 1 to {MAX_BAD_WORD_TOKENS} tokens"
            raise RequestError(message, "bad_words_token_ids")
        for token_id in (token_id for word in words for token_id in word):
            _check_int("bad_words_token_ids", token_id, 0, MAX_LENGTH, False)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, MAX_LENGTH, False)
            _check_float("logit_bias", bias, -100.0, 100.0, True)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})"
            raise RequestError(message, "min_tokens")
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True", "stop")
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise RequestError(f"grammar must be a GrammarSpec, not {self.grammar!r}", "grammar")

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0


def _frozen(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and name in ("stop", "bad_words"):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"{name} must be a list, not {value!r}", name)
    return tuple(value)


def _check_float(name: str, value: object, low: float, high: float, low_allowed: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, not {value!r}", name)
    # NaN fails every comparison.
    if not low <= value <= high or (value == low and not low_allowed):
        bracket = "[" if low_allowed else "("
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], not {value}", name)


def _check_int(name: str, value: object, low: int, high: int, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}", name)
    if not low <= value <= high:
        more = "; ask for up to --max-logprobs" if name.endswith("logprobs") else ""
        raise RequestError(f"{name} must be between {low} and {high}, not {value}{more}", name)
