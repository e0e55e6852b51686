"""The one way from a request to token ids, for every endpoint.

Templates are the model's own, rendered in a sandbox; none comes from a client. Rendering and
tokenising run in threads, so that a long prompt does not hold up the streams of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from hotshoe.errors import RequestError
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import TokensPrompt

T = TypeVar("T")
NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt for the engine; `text` is empty when it came as token ids."""

    token_ids: list[int]
    text: str = ""

    @property
    def prompt(self) -> TokensPrompt:
        """What the engine takes."""
        return TokensPrompt(self.token_ids)


class Renderer:
    """Renders and tokenises prompts.

    Args:
        tokenizer: None when the engine works on token ids only; then text is refused.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="hotshoe-render")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: There is none.
        """
        if self._tokenizer is None:
            raise RequestError(
                "this server has no tokenizer (--skip-tokenizer-init); send token ids", "prompt"
            )
        return self._tokenizer

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """Render a conversation.

        Args:
            messages: In OpenAI's form; see `hotshoe.text.messages`.
            tools: Function tools in OpenAI's form.
            variables: Further variables of the template, such as `enable_thinking`.
            add_generation_prompt: End with the opening of an assistant message.

        Raises:
            RequestError: No template, or it refuses these messages.
        """
        return await self._in_thread(
            lambda: self._chat(messages, tools, variables, add_generation_prompt)
        )

    async def prompt(
        self, prompt: str | Sequence[int], add_special_tokens: bool = True
    ) -> Rendered:
        """Tokenise text; token ids pass.

        Raises:
            RequestError: The text is not Unicode, or there is no tokenizer.
        """
        if not isinstance(prompt, str):
            return Rendered(list(prompt))
        return await self._in_thread(lambda: self._encode(prompt, add_special_tokens))

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids, unknown ones left out."""
        tokenizer = self.tokenizer
        return await self._in_thread(lambda: tokenizer.decode(token_ids, skip_special_tokens))

    def close(self) -> None:
        """Stop the threads; what is being rendered is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def _chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> Rendered:
        text = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> Rendered:
        return Rendered(self.tokenizer.encode(text, add_special_tokens=add_special_tokens), text)
