"""Reads the files of a model directory's tokenizer, each of them bounded.

Reads tokenizer.json with the `tokenizers` library and the small JSON files beside it directly, so
that start-up does not pay for `transformers`; that library is asked only for directories without
a tokenizer.json. Remote code is never run. Used by `Tokenizer` alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError
from hotshoe.foreign import foreign
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB, open_regular, read_file, read_text
from hotshoe.models.pointers import pointer_hint
from hotshoe.text.growth import check_file
from hotshoe.text.tekken_file import FILE as TEKKEN
from hotshoe.text.tekken_file import tekken_named, tekken_parts
from hotshoe.text.tiktoken_file import tiktoken_backend

if TYPE_CHECKING:
    import tokenizers

#: Folder of a directory's named templates, such as tool_use.jinja.
TEMPLATES = "additional_chat_templates"
#: Files that `transformers` may read where there is no tokenizer.json.
OTHER_FILES = ("*.json", "*.model", "*.tiktoken", "*.txt", "*.jinja")
#: Holds a character that no vocabulary has: what stands for such ones may be missing.
TRIAL = "a b\n\U0010fffd"
#: The longest tokenizer.json and the longest template that are read.
MAX_TOKENIZER_BYTES, MAX_TEMPLATE_BYTES = 256 * MIB, 1 * MIB
_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def load_backend(directory: Path) -> tokenizers.Tokenizer:
    """Make the tokenizer of a model directory.

    Raises:
        CheckpointError: No tokenizer is there, or it is malformed or of an unsupported kind.
    """
    path = directory / "tokenizer.json"
    if not path.exists() and (directory / TEKKEN).exists():
        path = directory / TEKKEN
        return read_backend(path, tekken_parts(path).model)
    if not path.exists():
        made = tiktoken_backend(directory, json_object(directory / "tokenizer_config.json"))
        return _convert_backend(directory) if made is None else made
    return read_backend(path, read_file(path, MAX_TOKENIZER_BYTES))


def read_backend(path: Path, data: bytes) -> tokenizers.Tokenizer:
    """Make the tokenizer of a tokenizer.json's content; `path` is for messages.

    Raises:
        CheckpointError: It is malformed.
    """
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
    missing = f"{directory} has no tokenizer.json and transformers finds no tokenizer either: "
    # Whose message has several lines. It reads config.json, too, and fails in any way on that.
    with foreign(lambda e: CheckpointError(missing + " ".join(str(e).split()))):
        converted = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=False, local_files_only=True
        )
    backend: tokenizers.Tokenizer | None = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            f"{directory}: tokenizer class {type(converted).__name__} cannot be converted; "
            "supply a tokenizer.json"
        )
    if backend.get_vocab_size() == len(backend.get_added_tokens_decoder()):
        # Nothing but the special tokens of the class that config.json names.
        raise CheckpointError(
            f"{directory} holds no tokenizer: neither tokenizer.json nor another; fetch the "
            "checkpoint's, name one with --tokenizer, or give --skip-tokenizer-init"
        )
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


def json_object(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty when there is no such file."""
    return read_json(path) if path.exists() else {}


def special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named tokens of a directory, whose configuration may leave them to a file."""
    tekken = directory / TEKKEN
    if not config and tekken.exists() and not (directory / "tokenizer.json").exists():
        config = tekken_named(tekken)
    if "added_tokens_decoder" not in config:  # an older checkpoint
        config = {**config, **json_object(directory / "special_tokens_map.json")}
    return named_tokens(directory, config)


def named_tokens(place: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named tokens of a configuration, such as {"bos_token": "<s>"}.

    Raises:
        CheckpointError: One is not Unicode.
    """
    tokens = {}
    for name in _NAMED_TOKENS:
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            if any("\ud800" <= char <= "\udfff" for char in token):
                raise CheckpointError(f"{place}: {name}_token is not valid Unicode: {token!a}")
            tokens[f"{name}_token"] = token
    return tokens


def chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return templates by name: those of files, else those in the configuration."""
    files = {path.stem: path for path in (directory / TEMPLATES).glob("*.jinja")}
    if (directory / "chat_template.jinja").exists():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in files.items()}
    return listed_templates(directory / "tokenizer_config.json", config)


def listed_templates(place: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a configuration by name.

    Raises:
        CheckpointError: They are neither text nor a list of named texts.
    """
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
