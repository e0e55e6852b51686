"""Reads how a model of late interaction marks queries and documents.

Sources of the formats: PyLate's config_sentence_transformers.json, ColBERT's artifact.metadata.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.models.config import ModelConfig, read_json
from hotshoe.models.modules import ARTIFACT, read_projection
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types.late import LateInteraction

PYLATE = "config_sentence_transformers.json"
#: By both forms: the marker of queries, of documents, the length of queries, whether masks that
#: fill queries up are attended to.
_KEYS = {
    ARTIFACT: ("query_token_id", "doc_token_id", "query_maxlen", "attend_to_mask_tokens"),
    PYLATE: ("query_prefix", "document_prefix", "query_length", "attend_to_expansion_tokens"),
}
LENGTH = 32


def read_late(path: Path, tokenizer: Tokenizer | None) -> LateInteraction:
    """Read a model directory whose matrix acts on tokens.

    Args:
        path: The directory.
        tokenizer: Its own; without one there are no markers.

    Raises:
        CheckpointError: A marker is no token.
    """
    name = next((name for name in (PYLATE, ARTIFACT) if (path / name).is_file()), None)
    if name is None or tokenizer is None:
        return LateInteraction()
    values, ids = read_json(path / name), tokenizer.token_ids
    query, document, length, attends = _KEYS[name]
    fills = values.get("do_query_expansion", True) is True
    return LateInteraction(
        _token(path / name, values, query, ids),
        _token(path / name, values, document, ids),
        length if type(length := values.get(length, LENGTH)) is int else LENGTH,
        ids.get(tokenizer.special_tokens.get("mask_token", "")) if fills else None,
        values.get(attends) is True,
        tuple(ids[word] for word in _skipped(values) if word in ids),
    )


def find_late(config: ModelConfig) -> LateInteraction | None:
    """Return how a model of late interaction reads texts; None for other models.

    Raises:
        CheckpointError: A marker is no token.
    """
    projection = read_projection(config)
    if projection is None or not projection.by_token:
        return None
    tokenizer = None
    with suppress(CheckpointError):  # token ids may be all that requests give
        tokenizer = Tokenizer.load(config.path)
    return read_late(config.path, tokenizer)


def _token(place: Path, values: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> int | None:
    found = values.get(key)
    if not found:
        return None
    if not isinstance(found, str) or found not in ids:
        raise CheckpointError(f"{place}: {key} is {found!r}, which is no token of this model")
    return ids[found]


def _skipped(values: Mapping[str, Any]) -> Sequence[str]:
    words = values.get("skiplist_words")
    if isinstance(words, list):
        return [word for word in words if isinstance(word, str)]
    return string.punctuation if values.get("mask_punctuation") is True else ()
