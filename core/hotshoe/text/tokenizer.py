"""A model directory's tokenizer: text to ids and back, special tokens, chat template.

Reads tokenizer.json with the `tokenizers` library and the small JSON files beside it directly, so
that start-up does not pay for `transformers`; that library is asked only for directories without
a tokenizer.json. Remote code is never run. Used by front ends, never by a worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.foreign import ForeignError, foreign
from hotshoe.models.config import eos_token_ids, read_json
from hotshoe.models.files import MIB, open_regular, read_file, read_text
from hotshoe.models.pointers import pointer_hint
from hotshoe.text.escapes import MARK, Guarded
from hotshoe.text.growth import check_file
from hotshoe.text.pieces import TokenPieces

if TYPE_CHECKING:
    import tokenizers

    from hotshoe.models.model_file import ModelFile

#: Folder of a directory's named templates, such as tool_use.jinja.
TEMPLATES = "additional_chat_templates"
#: Files that `transformers` may read where there is no tokenizer.json.
OTHER_FILES = ("*.json", "*.model", "*.tiktoken", "*.txt", "*.jinja")
#: Holds a character that no vocabulary has: what stands for such ones may be missing.
TRIAL = "a b\n\U0010fffd"
#: The longest tokenizer.json and the longest template that are read.
MAX_TOKENIZER_BYTES, MAX_TEMPLATE_BYTES = 256 * MIB, 1 * MIB
#: By how many tokens the end of a piece of text may differ from the same place in the whole.
_SEAM_TOKENS = 64
_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


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
        config = _read_json(directory / "tokenizer_config.json")
        backend = _load_backend(directory)
        return cls(
            backend,
            _special_tokens(directory, config),
            _chat_templates(directory, config),
            eos_token_ids(directory, _read_json(directory / "config.json")),
        )

    @classmethod
    def of_file(cls, path: Path, file: ModelFile) -> Tokenizer:
        """Take the tokenizer of a model that is a file.

        Raises:
            CheckpointError: It is malformed or of a kind that is not read.
        """
        parts = file.tokenizer()
        backend = _read_backend(path, parts.model)
        tokens, templates = _named_tokens(path, parts.config), _listed_templates(path, parts.config)
        return cls(backend, tokens, templates, eos_token_ids(path, file.config()))

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found

    def encode(self, text: str, add_special_tokens: bool = True, marked: bool = False) -> list[int]:
        """Return token ids; special tokens spelled out in the text become those tokens.

        Args:
            text: What to tokenize.
            add_special_tokens: Add those that the tokenizer puts around every text.
            marked: The text is from `mark` or `render_marked`: what is marked is ordinary text.

        Raises:
            RequestError: The text is not Unicode: it holds half a surrogate pair.
        """
        guard = marked and (MARK in text or self._guarded.looks_later)
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
            messages: Such as {"role": "user", "content": "Hello"}; see `hotshoe.text.messages`.
            tools: Function schemas offered to the model.
            add_generation_prompt: End with the opening of an assistant message.
            continue_final_message: End within the last message, which the model then goes on with.
            chat_template: A template in place of the model's.
            variables: Further variables that the template may know.

        Raises:
            RequestError: There is no template, or it refuses these messages; both a new message and
                the last one shall follow, or there is no last one with text.
        """
        from hotshoe.text.chat_template import render
        from hotshoe.text.messages import cut_at_end, marked_end, template_message

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
        from hotshoe.text.messages import template_message

        # Arguments of calls are read first: JSON may spell a token in other characters.
        marked = [self.mark(template_message(message)) for message in messages]
        template = {"chat_template": options.pop("chat_template", None)}
        return self.apply_chat_template(marked, self.mark(tools), **template, **self.mark(options))


def _encoding(
    backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool
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
            f"the tokenizer cannot take this text of {len(text)} characters; change it",
            "prompt",
        ) from failed.__cause__
    return found


def _load_backend(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        return _convert_backend(directory)
    return _read_backend(path, read_file(path, MAX_TOKENIZER_BYTES))


def _read_backend(path: Path, data: bytes) -> tokenizers.Tokenizer:
    """Make the tokenizer of a tokenizer.json's content; `path` is for messages."""
    import tokenizers

    with foreign(lambda e: CheckpointError(f"{path} is unusable: {e}{pointer_hint(path)}")):
        check_file(data)  # first: the library lets normalizers work while it reads the file
        backend = tokenizers.Tokenizer.from_buffer(data)
        backend.encode(TRIAL)
        return backend


def _convert_backend(directory: Path) -> tokenizers.Tokenizer:
    """Let transformers read an older format, such as a SentencePiece model."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise CheckpointError(
            f"{directory} has no tokenizer.json; to read other formats: "
            "pip install transformers sentencepiece tiktoken"
        ) from None
    _check_files(directory)
    try:
        converted = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        cause = " ".join(str(error).split())  # it has several lines
        raise CheckpointError(
            f"{directory} has no tokenizer.json and transformers finds no tokenizer either: {cause}"
        ) from error
    backend: tokenizers.Tokenizer | None = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            f"{directory}: tokenizer class {type(converted).__name__} cannot be converted; "
            "supply a tokenizer.json"
        )
    if backend.get_vocab_size() == len(backend.get_added_tokens_decoder()):
        # Nothing but the special tokens of the class that config.json names.
        raise CheckpointError(f"{directory} holds no tokenizer: neither tokenizer.json nor another")
    return backend


def _check_files(directory: Path) -> None:
    """Look at what another library may open.

    Raises:
        CheckpointError: A file is no regular one, or longer than any tokenizer's.
    """
    for pattern in OTHER_FILES:
        for path in directory.glob(pattern):
            with open_regular(path) as file:
                if os.fstat(file.fileno()).st_size > MAX_TOKENIZER_BYTES:
                    raise CheckpointError(f"{path} is longer than the file of any tokenizer")


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty when there is no such file."""
    return read_json(path) if path.exists() else {}


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    if "added_tokens_decoder" not in config:  # an older checkpoint
        config = {**config, **_read_json(directory / "special_tokens_map.json")}
    return _named_tokens(directory, config)


def _named_tokens(place: Path, config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _NAMED_TOKENS:
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            if any("\ud800" <= char <= "\udfff" for char in token):
                raise CheckpointError(f"{place}: {name}_token is not valid Unicode: {token!a}")
            tokens[f"{name}_token"] = token
    return tokens


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return templates by name: those of files, else those in the configuration."""
    files = {path.stem: path for path in (directory / TEMPLATES).glob("*.jinja")}
    if (directory / "chat_template.jinja").exists():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in files.items()}
    return _listed_templates(directory / "tokenizer_config.json", config)


def _listed_templates(place: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a configuration by name."""
    found = config.get("chat_template") or ()
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    try:
        templates = {entry["name"]: entry["template"] for entry in found}
        readable = all(isinstance(text, str) for text in templates.values())
    except (TypeError, KeyError):
        readable = False
    if not readable:
        raise CheckpointError(
            f"{place}: chat_template must be text, or a list of objects with name and template"
        )
    return templates
