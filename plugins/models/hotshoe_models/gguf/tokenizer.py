"""Makes a tokenizer.json and a tokenizer_config.json of a GGUF file's metadata.

Five kinds of vocabulary are read: "gpt2", whose tokens are byte-level and whose merges are listed,
"llama", a SentencePiece vocabulary with scores, whose merges follow from them, "gemma4", one like
it whose merges are listed, and those of encoders, which `word_pieces` has. How byte-level text is
cut before it is merged is only named in the file; `cuts` has the rules by that name.
Source: ggml's gguf.md for the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hotshoe.models.model_file import TokenizerParts
from hotshoe_models.gguf.cuts import CUTS
from hotshoe_models.gguf.metadata import CONTROL, Metadata
from hotshoe_models.gguf.word_pieces import SPACE, restored, unigrams, word_pieces

UNKNOWN, USER_DEFINED, BYTE = 2, 4, 6
ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad"}
ROLES |= {"cls": "cls", "mask": "mask"}
#: Of encoders: the roles of the tokens around a text, where they are not these.
OTHERS = {"bos": "cls", "eos": "seperator"}
WORD_PIECES = "bert"
#: Longest token whose merges are looked for; longer ones are only ever met as they are.
MAX_MERGED = 256


def tokenizer_of(meta: Metadata) -> TokenizerParts:
    """Make the tokenizer that a file describes.

    Raises:
        CheckpointError: Something is missing or malformed, or of a kind that is not read.
    """
    tokens, kinds = _vocabulary(meta)
    kind = meta.whole_text("tokenizer.ggml.model")
    if kind not in MODELS:
        raise meta.refuse(
            "tokenizer.ggml.model",
            f"but read are {', '.join(MODELS)}; name another with --tokenizer",
        )
    tokens = restored(tokens, kinds) if kind == WORD_PIECES else tokens
    file = {"version": "1.0", **MODELS[kind](meta, tokens, kinds)}
    file["added_tokens"] = list(_added(meta, tokens, kinds))
    config: dict[str, Any] = {"chat_template": _templates(meta)}
    for role, name in ROLES.items():
        if (token := _token(meta, tokens, role)) is not None:
            config[f"{name}_token"] = token
    return TokenizerParts(msgspec.json.encode(file), config)


def _vocabulary(meta: Metadata) -> tuple[list[str], list[int]]:
    """Return the tokens and their types.

    Raises:
        CheckpointError: They are malformed, or a token is there twice.
    """
    key = "tokenizer.ggml.tokens"
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(meta.strings(key))]
    kinds = meta.whole("tokenizer.ggml.token_type")
    kinds = [1] * len(tokens) if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise meta.refuse("tokenizer.ggml.token_type", f"but there are {len(tokens)} tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        raise meta.refuse(key, "but must be tokens that differ")
    return tokens, kinds


def _token(meta: Metadata, tokens: Sequence[str], role: str) -> str | None:
    """Return the text of the token that has a role.

    Raises:
        CheckpointError: Its number is none of the vocabulary.
    """
    number = meta.token_id(role)
    if number is None:
        return None
    if number >= len(tokens):
        key = f"tokenizer.ggml.{role}_token_id"
        raise meta.refuse(key, f"but there are {len(tokens)} tokens")
    return tokens[number]


def _added(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Describe the tokens that are found in a text before it is cut."""
    # Phi-3's markers take the blanks after them.
    strips = meta.arch == "phi3" and meta.whole("tokenizer.ggml.model") == "llama"
    for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            yield {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and text not in ("<unk>", "<s>", "<|endoftext|>"),
                "normalized": False,
                "special": kind != USER_DEFINED,
            }


def _bytelevel(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return model and steps of a byte-level vocabulary.

    Raises:
        CheckpointError: Its way of cutting is unknown, or a merge is malformed.
    """
    name = meta.whole_text("tokenizer.ggml.pre")
    if name not in CUTS:
        known = ", ".join(sorted(CUTS))
        raise meta.refuse(
            "tokenizer.ggml.pre",
            f"a way of cutting text that is not known (known: {known}); name a directory with the "
            "model's tokenizer.json with --tokenizer",
        )
    cut = CUTS[name]
    steps = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in cut.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "normalizer": {"type": "NFC"} if cut.composed else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, level | {"use_regex": False}],
        },
        "decoder": level | {"use_regex": True},
        "post_processor": _frame(meta, tokens, cut.bos),
        "model": _bpe(tokens, _listed_merges(meta, tokens), ignore_merges=cut.whole),
    }


def _listed_merges(meta: Metadata, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return the file's merges; a blank divides each, and may not be its first character."""
    key, known, merges = "tokenizer.ggml.merges", set(tokens), []
    for merge in meta.strings(key):
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or not {left, right, left + right} <= known:
            raise meta.refuse(key, f"but {merge!r:.100} joins no two tokens to a third")
        merges.append((left, right))
    return merges


def _scores(meta: Metadata, tokens: Sequence[str]) -> list[float]:
    """Return the score of each token.

    Raises:
        CheckpointError: There is no score for each token.
    """
    key = "tokenizer.ggml.scores"
    scores = meta.whole(key)
    fits = isinstance(scores, list) and len(scores) == len(tokens)
    if not fits or not all(type(score) is float and score == score for score in scores):
        raise meta.refuse(key, f"but must be numbers, one for each of {len(tokens)} tokens")
    return list(scores)


def _scored(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return model and steps of a SentencePiece vocabulary."""
    return _pieces(meta, tokens, kinds, _scored_merges(tokens, kinds, _scores(meta, tokens)))


def _words(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return model and steps of a WordPiece vocabulary."""
    found = word_pieces(meta, tokens, kinds, _token(meta, tokens, "unknown"))
    return {**found, "post_processor": _frame(meta, tokens, True, True, fixed=True)}


def _unigrams(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return model and steps of a vocabulary of unigrams."""
    found = unigrams(meta, tokens, _scores(meta, tokens))
    return {**found, "post_processor": _frame(meta, tokens, bos=False, eos=True)}


def _merged(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return model and steps of a vocabulary like SentencePiece's, whose merges are listed."""
    return _pieces(meta, tokens, kinds, _listed_merges(meta, tokens))


def _pieces(
    meta: Metadata, tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return model and steps of a vocabulary of pieces, in which a sign stands for blanks."""
    prefix = meta.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    text = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [text, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "post_processor": _frame(meta, tokens, bos=True),
        "model": _bpe(
            tokens,
            merges,
            unk_token=_token(meta, tokens, "unknown"),
            fuse_unk=True,
            byte_fallback=BYTE in kinds,
        ),
    }


def _scored_merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return every way to join two tokens to a third, by falling score of the third."""
    ids = {text: i for i, text in enumerate(tokens)}
    apart = (UNKNOWN, CONTROL, USER_DEFINED, BYTE)
    joined = [i for i, kind in enumerate(kinds) if kind not in apart]
    merges = []
    for i in sorted(joined, key=lambda i: -scores[i]):
        text = tokens[i]
        if len(text) > MAX_MERGED:
            continue
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        known = [(left, right) for left, right in cuts if left in ids and right in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _bpe(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": {text: i for i, text in enumerate(tokens)},
        "merges": merges,
    }


def _frame(
    meta: Metadata, tokens: Sequence[str], bos: bool, eos: bool = False, fixed: bool = False
) -> dict[str, Any] | None:
    """Return what puts the first and the last token around a text.

    Args:
        bos, eos: Whether there is such a token where the file does not say.
        fixed: There is, whatever the file says, and it may have the name that encoders have for it.
            Of two texts, the second is of another type.
    """
    used, ids = {}, {}
    for role, default in (("bos", bos), ("eos", eos)):
        named = OTHERS[role] if fixed and meta.token_id(OTHERS[role]) is not None else role
        token, ids[role] = _token(meta, tokens, named), meta.token_id(named)
        asked = fixed or meta.flag(f"tokenizer.ggml.add_{role}_token", default)
        if token is not None and asked:
            used[role] = token
    if not used:
        return None

    def around(kind: str, of_type: int = 0) -> list[dict[str, Any]]:
        special = {r: {"SpecialToken": {"id": t, "type_id": of_type}} for r, t in used.items()}
        first = None if of_type else special.get("bos")
        text = {"Sequence": {"id": kind, "type_id": of_type}}
        return [part for part in (first, text, special.get("eos")) if part]

    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": [*around("A"), *around("B", int(fixed))],
        "special_tokens": {
            text: {"id": text, "ids": [ids[role]], "tokens": [text]} for role, text in used.items()
        },
    }


def _templates(meta: Metadata) -> list[dict[str, str]]:
    """Return the chat templates by name, the only one as "default"."""
    key = "tokenizer.chat_template"
    others = "tokenizer.chat_templates"
    names = [] if meta.whole(others) is None else meta.strings(others)
    found: Mapping[str, Any] = {
        "default": meta.whole(key),
        **{name: meta.whole(f"{key}.{name}") for name in names},
    }
    for text in found.values():
        if text is not None and not isinstance(text, str):
            raise meta.refuse(key, "but must be text")
    return [{"name": name, "template": text} for name, text in found.items() if text is not None]


MODELS = {"gpt2": _bytelevel, "llama": _scored, "gemma4": _merged}
MODELS |= {WORD_PIECES: _words, "t5": _unigrams}
