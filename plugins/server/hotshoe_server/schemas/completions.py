"""Requests of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from hotshoe.errors import RequestError
from hotshoe.types import SamplingParams
from hotshoe_server.schemas.base import Texts
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.schemas.grammar import ResponseFormat

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(Generation):
    """See OpenAI's API reference, "Completions (legacy)"."""

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "suffix": ("",),
        "best_of": (1,),
        "thinking_token_budget": (),
    }
    DEFAULT_MAX_TOKENS: ClassVar[int | None] = DEFAULT_MAX_TOKENS

    prompt: str | list[Any] | None = Field(None, max_length=2**24)
    prompt_embeds: Texts | None = None
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    add_special_tokens: bool = True

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one, without those that are given as embeddings.

        Raises:
            RequestError: The list is neither of texts, nor of token ids, nor of lists of these.
        """
        if self.prompt is None:
            if self.prompt_embeds is None:
                raise RequestError("give prompt or prompt_embeds", "prompt")
            return []
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = set(map(type, self.prompt))
        if kinds == {int}:
            return [self.prompt]
        lists = kinds == {list} and all({int}.issuperset(map(type, p)) for p in self.prompt)
        if lists or kinds == {str}:
            return self.prompt
        raise RequestError("prompt takes text, token ids, or a list of either", "prompt")

    def embeds(self) -> list[str]:
        """Return the prompts that are given as embeddings, in base64.

        Raises:
            RequestError: `echo` is asked for, which they have no text for.
        """
        found = [self.prompt_embeds] if isinstance(self.prompt_embeds, str) else self.prompt_embeds
        if found and self.echo:
            raise RequestError("echo needs a text, which embeddings have none of", "echo")
        return found or []

    def params(self, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return what the engine takes. `max_tokens` 0 asks for the prompt alone."""
        values: dict[str, Any] = {}
        if self.max_tokens == 0 and self.echo:
            values["max_tokens"] = 1
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
            if self.echo:
                values["prompt_logprobs"] = self.logprobs
        return self.sampling_params(defaults, **values | more)
