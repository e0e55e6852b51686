"""The one way from a request to token ids, for every endpoint.

Templates are the model's own, rendered in a sandbox; none comes from a client. Rendering and
tokenizing run in threads, so that a long prompt does not hold up the streams of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from hotshoe.engine.api.inputs import too_long
from hotshoe.errors import RequestError
from hotshoe.text.escapes import unmarked
from hotshoe.text.tokenizer import Tokenizer, in_text_thread
from hotshoe.types import EmbedsPrompt, TokensPrompt
from hotshoe_server.embeds import read_embeds
from hotshoe_server.errors import ApiError

T = TypeVar("T")
#: How much longer than the context a text may be: of some only the end is kept, or the count asked.
TEXT_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt for the engine; `text` is empty when it came as token ids.

    Where it came as `embeds`, token ids only stand for their rows.
    """

    token_ids: list[int]
    text: str = ""
    embeds: Any = None

    @property
    def prompt(self) -> TokensPrompt | EmbedsPrompt:
        """What the engine takes."""
        if self.embeds is not None:
            return EmbedsPrompt(self.embeds)
        return TokensPrompt(self.token_ids)

    def cut(self, count: int, end: bool) -> Rendered:
        """Return so many tokens of the prompt, of its end or of its beginning."""
        if count >= len(self.token_ids):
            return self
        return Rendered(self.token_ids[-count:] if end else self.token_ids[:count])


class Renderer:
    """Renders and tokenizes prompts.

    Args:
        tokenizer: None when the engine works on token ids only; then text is refused.
        defaults: Variables of the template for what requests leave open.
        max_model_len: The longest sequence. Text of more than `TEXT_FACTOR` times as many tokens is
            refused before it is tokenized; default: none is.
        allow_special_tokens: Control tokens that messages spell are those tokens.
        trust_templates: Requests may bring a chat template of their own.

    Attributes:
        marks: Control tokens that messages spell are text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        max_model_len: int | None = None,
        allow_special_tokens: bool = False,
        trust_templates: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._defaults = dict(defaults)
        self._max_model_len = max_model_len
        self.marks = not allow_special_tokens
        self._trusts = trust_templates

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
        add_special_tokens: bool = False,
    ) -> Rendered:
        """Render a conversation.

        Args:
            messages: In OpenAI's form; see `hotshoe.text.chat_template`.
            tools: Function tools in OpenAI's form.
            variables: Further arguments of `Tokenizer.apply_chat_template`, and variables of the
                template, such as `enable_thinking`.
            add_special_tokens: Add the tokenizer's own to those that the template writes.

        Raises:
            RequestError: No template, or it refuses these messages.
            ApiError: The request brings a template, and the server does not trust it.
        """
        if "chat_template" in variables and not self._trusts:
            message = "chat_template is not supported here; the server needs "
            raise ApiError(
                "unsupported_parameter", f"{message}--trust-request-chat-template", "chat_template"
            )
        return await in_text_thread(
            lambda: self._chat(messages, tools, variables, add_special_tokens)
        )

    async def prompt(
        self, prompt: str | Sequence[int], add_special_tokens: bool = True, content: bool = False
    ) -> Rendered:
        """Tokenize text; token ids pass.

        Args:
            prompt: Text or token ids.
            add_special_tokens: Add those that the tokenizer puts around every text.
            content: The text is somebody's words and not the model's own language, so that control
                tokens that it spells are text.

        Raises:
            RequestError: The text is not Unicode, or there is no tokenizer.
        """
        if not isinstance(prompt, str):
            return Rendered(list(prompt))
        marked = content and self.marks
        return await in_text_thread(
            lambda: self._encode(
                self.tokenizer.mark(prompt) if marked else prompt,
                add_special_tokens,
                marked=marked,
            )
        )

    async def embeds(self, encoded: str) -> Rendered:
        """Read prompt embeddings.

        Raises:
            RequestError: They are malformed.
        """
        rows = await in_text_thread(lambda: read_embeds(encoded))
        return Rendered([0] * (len(rows) if rows.ndim else 0), embeds=rows)

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids, unknown ones left out."""
        tokenizer = self.tokenizer
        return await in_text_thread(lambda: tokenizer.decode(token_ids, skip_special_tokens))

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread."""
        return await in_text_thread(function)

    def _chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        add_special_tokens: bool,
    ) -> Rendered:
        options = self._defaults | dict(variables)
        render = self.tokenizer.render_marked if self.marks else self.tokenizer.apply_chat_template
        text = render(messages, tools, **options)
        return self._encode(text, add_special_tokens, "messages", self.marks)

    def check_size(self, text: str, field: str = "prompt") -> None:
        """Refuse a text before it is tokenized that is far too long, with an `ApiError`."""
        limit = self._max_model_len
        if limit is not None and self.tokenizer.exceeds(text, TEXT_FACTOR * limit):
            error = too_long(limit, f"{len(text)} characters, clearly more")
            raise ApiError("context_length_exceeded", str(error), field)

    def _encode(
        self, text: str, add_special_tokens: bool, field: str = "prompt", marked: bool = False
    ) -> Rendered:
        self.check_size(text, field)
        ids = self.tokenizer.encode(text, add_special_tokens, marked)
        return Rendered(ids, unmarked(text) if marked else text)
