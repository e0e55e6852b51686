"""The vocabularies of encoders: WordPiece, which files call "bert", and SentencePiece's unigrams,
which they call "t5".

Called by `tokenizer`, which puts tokens around a text. Source: ggml's gguf.md for the keys; Devlin
et al. 2018, arXiv:1810.04805, for WordPiece; Kudo 2018, arXiv:1804.10959, for unigrams.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from hotshoe_models.gguf.metadata import CONTROL, Metadata

#: What stands in front of a word in files, and of what follows in a word in tokenizer.json.
SPACE, REST = "▁", "##"
UPPER, NAMED = re.compile("[A-Z]"), re.compile(r"\[.+\]")
LONGEST_WORD = 100


def restored(tokens: Sequence[str], kinds: Sequence[int]) -> list[str]:
    """Return the tokens of a WordPiece vocabulary as tokenizer.json has them.

    Older files have names of unused tokens as they are, too, such as "[unused7]".
    """
    return [
        token if kind == CONTROL or NAMED.fullmatch(token) else _restored(token)
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def _restored(token: str) -> str:
    return token.removeprefix(SPACE) if token.startswith(SPACE) else REST + token


def word_pieces(
    meta: Metadata, tokens: Sequence[str], kinds: Sequence[int], unknown: str | None
) -> dict[str, Any]:
    """Return model and steps of a WordPiece vocabulary.

    Files do not say whether text becomes lower case. It does unless some token has a capital.
    """
    lower = not any(UPPER.search(token) for token in tokens if not NAMED.fullmatch(token))
    lower = meta.flag("tokenizer.ggml.normalizer.lowercase", lower)
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return {
        "normalizer": {**normalizer, "strip_accents": None, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": REST, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown or "[UNK]",
            "continuing_subword_prefix": REST,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {text: i for i, text in enumerate(tokens)},
        },
    }


def unigrams(meta: Metadata, tokens: Sequence[str], scores: Sequence[float]) -> dict[str, Any]:
    """Return model and steps of a vocabulary of unigrams.

    Raises:
        CheckpointError: The table of characters is no list of bytes.
    """
    key = "tokenizer.ggml.precompiled_charsmap"
    table = meta.whole(key)
    steps: list[dict[str, Any]] = []
    if table is not None:
        if not isinstance(table, list) or not all(
            type(byte) is int and -128 <= byte < 256 for byte in table
        ):
            raise meta.refuse(key, "but must be a list of bytes")
        coded = base64.b64encode(bytes(byte & 255 for byte in table)).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": coded})
    prefix = meta.flag("tokenizer.ggml.add_space_prefix", True)
    metaspace: dict[str, Any] = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if prefix else "never",
        "split": True,
    }
    cuts: list[dict[str, Any]] = [metaspace]
    if meta.flag("tokenizer.ggml.remove_extra_whitespaces", True):
        cuts.insert(0, {"type": "WhitespaceSplit"})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": meta.token_id("unknown"),
            "vocab": list(zip(tokens, scores, strict=True)),
            "byte_fallback": False,
        },
    }
