"""A model directory's tokenizer: text to ids and back, special tokens, chat template.

What files say is read by `tokenizer_files`. Used by front ends, never by a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.foreign import ForeignError, foreign
from hotshoe.models.config import eos_token_ids
from hotshoe.text import tokenizer_files as files
from hotshoe.text.escapes import MARK, Guarded
from hotshoe.text.pieces import TokenPieces

if TYPE_CHECKING:
    import tokenizers

    from hotshoe.models.model_file import ModelFile

T = TypeVar("T")
Text = str | tuple[str, str]
#: All that a process does with long texts beside its event loop: so many at once, no more.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="hotshoe-text")
#: What is read sooner than a thread is asked to: characters of a text, token ids of a list.
SHORT_CHARS, SHORT_IDS = 256, 2048
#: By how many tokens the end of a piece of text may differ from the same place in the whole.
_SEAM_TOKENS = 64


async def in_text_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call what may take long with a text, so that streams of others go on meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)


class Tokenizer:
    """A tokenizer and what its model directory says about it.

    Attributes:
        vocab_size: Number of tokens, added ones included; ids may have gaps.
        special_tokens: Named tokens, such as {"bos_token": "<s>"}.
        special_token_ids: Ids of all tokens that are not text.
        special_token_texts: How these are written.
        bos_token_id, eos_token_id: None when the model has none.
        eos_token_ids: Every token that ends a sequence: the tokenizer's, then those of
            generation_config.json (or else config.json).
        chat_templates: By name; a model's only template is "default".
        pieces: What each token adds to a text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str],
        generation_eos_ids: Sequence[int] = (),
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_templates = dict(chat_templates)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_token_texts = {i: x.content for i, x in added.items() if x.special}
        self.special_token_ids = frozenset(self.special_token_texts)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        own = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids = tuple(dict.fromkeys((*own, *generation_eos_ids)))
        self.pieces = TokenPieces(backend)
        self._guarded = Guarded(backend)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Read a model directory.

        Raises:
            CheckpointError: No tokenizer is there, or it is malformed or of an unsupported kind.
        """
        directory = Path(directory)
        config = files.json_object(directory / "tokenizer_config.json")
        backend = files.load_backend(directory)
        return cls(
            backend,
            files.special_tokens(directory, config),
            files.chat_templates(directory, config),
            eos_token_ids(directory, files.json_object(directory / "config.json")),
        )

    @classmethod
    def of_file(cls, path: Path, file: ModelFile) -> Tokenizer:
        """Take the tokenizer of a model that is a file.

        Raises:
            CheckpointError: It is malformed or of a kind that is not read.
        """
        parts = file.tokenizer()
        backend, config = files.read_backend(path, parts.model), parts.config
        tokens = files.named_tokens(path, config)
        templates = files.listed_templates(path, config)
        return cls(backend, tokens, templates, eos_token_ids(path, file.config()))

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found

    def encode(
        self, text: Text, add_special_tokens: bool = True, marked: bool = False
    ) -> list[int]:
        """Return token ids; special tokens spelled out in the text become those tokens.

        Args:
            text: What to tokenize: a text, or two that the tokenizer puts together.
            add_special_tokens: Add those that the tokenizer puts around every text.
            marked: The text is from `mark` or `render_marked`: what is marked is ordinary text.

        Raises:
            RequestError: The text is not Unicode: it holds half a surrogate pair.
        """
        parts = (text,) if isinstance(text, str) else text
        guard = marked and (self._guarded.looks_later or any(MARK in part for part in parts))
        backend = self._guarded.backend if guard else self._backend
        ids: list[int] = _encoding(backend, text, add_special_tokens).ids
        return ids

    def mark(self, value: Any) -> Any:
        """Return texts, or what holds texts, with a mark in each control token they spell."""
        return self._guarded.escape(value)

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Return whether a text has clearly more tokens, without tokenizing all of a huge one.

        A text of few characters per token is left to `encode`. A longer one is looked at from its
        beginning, so that dense text is found out early and memory stays bounded.

        Raises:
            RequestError: As for `encode`.
        """
        if len(text) > max_tokens * self._longest_token_chars:
            return True
        size, most = 2 * max_tokens, max_tokens + max_tokens // 4 + _SEAM_TOKENS
        while 2 * size < len(text):
            if len(_encoding(self._backend, text[:size], False)) > most:
                return True
            size *= 2
        return False

    @property
    def token_ids(self) -> Mapping[str, int]:
        """Ids of all tokens by their form in the vocabulary, added ones included."""
        vocabulary: Mapping[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @cached_property
    def _longest_token_chars(self) -> int:
        return max(map(len, self.token_ids), default=1)

    @cached_property
    def spaces_special_tokens(self) -> bool:
        """Whether a special token gets a space in front of it that it is not written with."""
        made = ((self.pieces.make(i, False), x) for i, x in self.special_token_texts.items())
        return any(piece != text.encode() for piece, text in made)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of a whole sequence."""
        text: str = self._backend.decode_batch(
            [token_ids], skip_special_tokens=skip_special_tokens
        )[0]
        return text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Render messages as the model's prompt text; encode it without adding special tokens.

        Args:
            messages: Such as {"role": "user", "content": "Hello"}, see `template_message`.
            tools: Function schemas offered to the model.
            add_generation_prompt: End with the opening of an assistant message.
            continue_final_message: End within the last message, which the model then goes on with.
            chat_template: A template in place of the model's.
            variables: Further variables that the template may know.

        Raises:
            RequestError: There is no template, or it refuses these messages; both a new message and
                the last one shall follow, or there is no last one with text.
        """
        from hotshoe.text.chat_template import cut_at_end, marked_end, render, template_message

        name = "tool_use" if tools and "tool_use" in self.chat_templates else "default"
        source = chat_template or self.chat_templates.get(name)
        if source is None:
            raise RequestError("this model has no chat template; send a plain prompt", "messages")
        if not messages:
            raise RequestError("messages may not be empty", "messages")
        found = [template_message(message) for message in messages]
        if continue_final_message:
            found = marked_end(found, add_generation_prompt)
        known = {
            "messages": found,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        known |= variables
        try:
            text = render(source, self.special_tokens | known, keep=chat_template is None)
        except CheckpointError as error:
            if chat_template is None:
                raise
            raise RequestError(f"chat_template: {error}", "chat_template") from None
        return cut_at_end(text) if continue_final_message else text

    def render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """Render as `apply_chat_template`, with `mark` on all that a template is given."""
        from hotshoe.text.chat_template import template_message

        # Arguments of calls are read first: JSON may spell a token in other characters.
        marked = [self.mark(template_message(message)) for message in messages]
        template = {"chat_template": options.pop("chat_template", None)}
        return self.apply_chat_template(marked, self.mark(tools), **template, **self.mark(options))


def _encoding(
    backend: tokenizers.Tokenizer, text: Text, add_special_tokens: bool
) -> tokenizers.Encoding:
    """Tokenize by the call for batches, which alone lets other threads run meanwhile.

    Raises:
        RequestError: The text is not Unicode, or the library gives up on it.
    """
    try:
        with foreign(passing=(TypeError,)):
            [found] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    except TypeError as error:
        raise RequestError(
            "the text is not valid Unicode: it holds an unpaired surrogate", "prompt"
        ) from error
    except ForeignError as failed:
        raise RequestError(
            f"the tokenizer cannot take this text of {sum(map(len, text))} characters; change it",
            "prompt",
        ) from failed.__cause__
    return found
