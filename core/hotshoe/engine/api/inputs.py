"""From a caller's prompt and parameters to what the engine core runs; all bounds are checked here.

What passes is safe for every later room: token ids lie within the vocabulary, counts below caps,
texts are Unicode. May be called from several threads, as tokenizing takes long.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import countOf
from typing import Any

from hotshoe.engine.api.other_inputs import check_steps, pooling_of, read_embeds
from hotshoe.engine.client import EngineInfo
from hotshoe.engine.wire.messages import Add
from hotshoe.errors import RequestError
from hotshoe.text.bad_words import bad_word_token_ids
from hotshoe.text.repetition import check_repetition
from hotshoe.text.tokenizer import SHORT_CHARS, SHORT_IDS, Text, Tokenizer
from hotshoe.types import (
    EmbedsPrompt,
    PoolingParams,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from hotshoe.types.arguments import check_arguments

MAX_PRIORITY = 2**31 - 1
MAX_LABEL_CHARS = 1024
#: Parameters that mean nothing where no logits are.
_ABOUT_LOGITS = (
    *("logprobs", "prompt_logprobs", "logit_bias", "bad_words", "bad_words_token_ids"),
    *("allowed_token_ids", "grammar"),
)


#: What a request for a vector asks of sampling.
_NOTHING = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as the front end keeps it, and `add` for the engine core.

    `params` are those of the caller; `add.params` leave out what the core does not need. A request
    for a vector has those of a single token, which is never sampled.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    add: Add


class InputProcessor:
    """Tokenizes, validates and fans out.

    Args:
        info: Of the engine.
        tokenizer: None when the engine works on token ids only.
    """

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer | None) -> None:
        self._info, self._config = info, info.config
        self._vocab_size = info.vocab_size
        self._tokenizer = tokenizer
        self._numbers = itertools.count(1)

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        priority: int = 0,
        tenant: str | None = None,
    ) -> PreparedRequest:
        """Check one request. Its sequences get ids that this processor never gives again.

        Raises:
            RequestError: `field` names what is wrong.
        """
        pooling = None
        if isinstance(params, PoolingParams):
            pooling, params = pooling_of(self._info, params), _NOTHING
        elif "generate" not in self._info.tasks:
            raise RequestError(
                f"this model generates no text; its tasks: {', '.join(self._info.tasks) or 'none'}",
                "params",
            )
        embeds = None
        if isinstance(prompt, EmbedsPrompt):
            embeds, prompt = read_embeds(prompt, params, self._info.hidden_size)
        text, token_ids, salt = self._tokenize(prompt, room=pooling is None)
        if pooling is not None:
            check_steps(pooling, token_ids)
        _check_label("cache_salt", salt)
        _check_label("tenant", tenant)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RequestError(f"priority must be an integer, not {priority!r}", "priority")
        if abs(priority) > MAX_PRIORITY:
            why = f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}, not {priority}"
            raise RequestError(why, "priority")
        params = self._checked(params)
        number = next(self._numbers)
        add = Add(
            [f"{number}.{index}" for index in range(params.n)],
            token_ids,
            _for_core(params),
            priority,
            salt,
            tenant,
            pooling=pooling,
            embeds=embeds,
        )
        return PreparedRequest(request_id, text, token_ids, params, add)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> TokensPrompt:
        """Turn a conversation into a prompt with the model's chat template.

        Args:
            messages: In OpenAI's form.
            tools: Function schemas offered to the model.
            options: Further arguments of `Tokenizer.apply_chat_template`, variables included.

        Raises:
            RequestError: No tokenizer, no template, or the template refuses the messages.
        """
        tokenizer = self.require_tokenizer()
        marked = not self._config.allow_special_tokens_in_text
        render = tokenizer.render_marked if marked else tokenizer.apply_chat_template
        text = render(messages, tools, **options)
        return TokensPrompt(self.encode(text, add_special_tokens=False, marked=marked))

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            RequestError: There is none.
        """
        if self._tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (skip_tokenizer_init); give token ids", "prompt"
            )
        return self._tokenizer

    def _tokenize(self, prompt: Prompt, room: bool) -> tuple[str | None, list[int], str | None]:
        """Return text, token ids and cache salt; `room` leaves one token to be generated."""
        if isinstance(prompt, str):
            prompt = TextPrompt(prompt)
        if isinstance(prompt, TextPrompt):
            # A text to embed is content; one to go on with is the model's own language.
            marked = not room and not self._config.allow_special_tokens_in_text
            text = self.require_tokenizer().mark(prompt.text) if marked else prompt.text
            ids = self.encode(text, add_special_tokens=True, marked=marked)
            return prompt.text, self._bounded(ids, room), prompt.cache_salt
        if isinstance(prompt, TokensPrompt):
            return None, self._bounded(_integers(prompt.token_ids), room), prompt.cache_salt
        raise RequestError(
            "a prompt is text, TextPrompt, TokensPrompt or EmbedsPrompt, "
            f"not {type(prompt).__name__}",
            "prompt",
        )

    def encode(self, text: Text, add_special_tokens: bool, marked: bool) -> list[int]:
        """Tokenize a text or a pair, as `Tokenizer.encode` does, unless it is clearly too long.

        Raises:
            RequestError: It is, it is not Unicode, or there is no tokenizer.
        """
        tokenizer, limit = self.require_tokenizer(), self._config.max_model_len
        for part in (text,) if isinstance(text, str) else text:
            if tokenizer.exceeds(part, limit):
                raise too_long(limit, f"{len(part)} characters, clearly more")
        return tokenizer.encode(text, add_special_tokens, marked)

    def _bounded(self, ids: list[int], room: bool) -> list[int]:
        check_length(len(ids), self._config.max_model_len, generates=room)
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"token id {token_id} is outside the vocabulary (0 to {self._vocab_size - 1})",
                    "prompt",
                )
        return ids

    def _checked(self, params: SamplingParams) -> SamplingParams:
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params must be SamplingParams, not {params!r}", "params")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            if wanted is not None and wanted > self._config.max_logprobs:
                raise RequestError(
                    f"{name} is {wanted}, but this engine allows {self._config.max_logprobs} "
                    "(--max-logprobs)",
                    name,
                )
        _check_more(params)
        if params.extra_args:
            check_arguments(params.extra_args, self._info.arguments)
        words = (token_id for word in params.bad_words_token_ids for token_id in word)
        for name, ids in (
            ("logit_bias", params.logit_bias),
            ("allowed_token_ids", params.allowed_token_ids),
            ("stop_token_ids", params.stop_token_ids),
            ("logprob_token_ids", params.logprob_token_ids),
            ("bad_words_token_ids", list(words)),
        ):
            if ids and max(ids) >= self._vocab_size:
                raise RequestError(
                    f"{name} names token id {max(ids)}, outside the vocabulary "
                    f"(0 to {self._vocab_size - 1})",
                    name,
                )
        for name in () if self._info.has_logits else _ABOUT_LOGITS:
            if getattr(params, name) not in (None, (), {}):
                raise RequestError(
                    f"{name} cannot be served: tokens are not sampled from logits here", name
                )
        if params.bad_words:
            found = bad_word_token_ids(self.require_tokenizer(), params.bad_words)
            words_ids = (*params.bad_words_token_ids, *found)
            params = replace(params, bad_words_token_ids=words_ids)
        if (params.stop or params.detokenize) and self._tokenizer is None:
            if params.stop:
                self.require_tokenizer()
            params = replace(params, detokenize=False)
        return params


def is_short(prompt: Prompt, params: SamplingParams | PoolingParams) -> bool:
    """Tell whether `prepare` takes less of an event loop's time than to ask a thread does."""
    if getattr(params, "bad_words", ()):  # texts as well, up to hundreds
        return False
    content: object = prompt
    limit = SHORT_CHARS
    if isinstance(prompt, TextPrompt):
        content = prompt.text
    elif isinstance(prompt, TokensPrompt):
        content, limit = prompt.token_ids, SHORT_IDS
    return isinstance(content, (str, list)) and len(content) <= limit


def _check_more(params: SamplingParams) -> None:
    if params.repetition_detection is not None:
        check_repetition(params.repetition_detection)
    if params.logprob_token_ids and params.logprobs is None:
        raise RequestError("logprob_token_ids needs logprobs", "logprob_token_ids")


def _for_core(params: SamplingParams) -> SamplingParams:
    """Leave out what the front end has dealt with or will."""
    if params.stop or params.bad_words or params.repetition_detection:
        return replace(params, stop=(), bad_words=(), repetition_detection=None)
    return params


def _check_label(name: str, value: str | None) -> None:
    """Refuse what cannot be hashed or sent."""
    if value is None:
        return
    if not isinstance(value, str) or len(value) > MAX_LABEL_CHARS:
        raise RequestError(f"{name} must be a string of at most {MAX_LABEL_CHARS} characters", name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds an unpaired surrogate, so it is not text", name) from None


def _integers(ids: Sequence[int]) -> list[int]:
    """Return the ids as a list of what is an integer and nothing else."""
    if not isinstance(ids, Iterable):
        raise RequestError(f"token ids come as a list, not as {ids!r}", "prompt")
    ids = list(ids)
    if countOf(map(type, ids), int) < len(ids):
        wrong = next(i for i in ids if type(i) is not int)
        kind = type(wrong).__name__
        raise RequestError(f"token ids are integers, not {wrong!r} of type {kind}", "prompt")
    return ids


def too_long(limit: int, size: str) -> RequestError:
    """Return the refusal of a prompt of a size that the context does not have."""
    return RequestError(
        f"this model's maximum context length is {limit} tokens, prompt and output together, but "
        f"the prompt has {size}; shorten it",
        "prompt",
    )


def check_length(num_tokens: int, limit: int, generates: bool = True) -> None:
    """Refuse a prompt without tokens, and one that leaves no room for a token that is wanted.

    Raises:
        RequestError: It is empty or too long.
    """
    if num_tokens == 0:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    if num_tokens > limit - generates:
        raise too_long(limit, f"{num_tokens} tokens")
