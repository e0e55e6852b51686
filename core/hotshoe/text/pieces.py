"""What each token adds to a text, in bytes: a tokenizer's decoder turned into a lookup.

A decoder of the `tokenizers` library maps a whole list of tokens to text. Those of language models
do so token by token, but for the first token of a text; that makes incremental detokenization a
table lookup. Decoders that look at neighboring tokens are refused when a tokenizer is loaded.
Used by `Tokenizer`, which shares one table between all requests, and by `Detokenizer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, AnyStr

from hotshoe.errors import CheckpointError
from hotshoe.text.growth import check_growth, flatten

if TYPE_CHECKING:
    import tokenizers

Text = str | bytes
#: Maps a token (bytes once some step has made bytes of it), knowing whether it is the first.
PieceStep = Callable[[Text, bool], Text]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: What WordPiece clean-up replaces within one token.
_CLEANUPS = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {end}", end) for end in ("'s", "'ve", "'re")),
)


class TokenPieces(dict[int, bytes]):
    """Bytes by token id, for any token but the first of a text; filled as ids are looked up.

    Ids that the tokenizer does not know have no bytes.

    Raises:
        CheckpointError: The decoder cannot work token by token.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__()
        decoder = tokenizer.decoder
        spec = {"type": "Join"} if decoder is None else json.loads(decoder.__getstate__())
        self._id_to_token: Callable[[int], str | None] = tokenizer.id_to_token
        self._steps = _compile(spec)

    def __missing__(self, token_id: int) -> bytes:
        piece = self.make(token_id, first=False)
        if piece is None:
            return b""  # and is not kept: strangers can name any number of them
        self[token_id] = piece
        return piece

    def make(self, token_id: int, first: bool) -> bytes | None:
        """Return a token's bytes, or None when the id is unknown."""
        piece: Text | None = self._id_to_token(token_id)
        if piece is None:
            return None
        for step in self._steps:
            piece = step(piece, first)
        return piece.encode() if isinstance(piece, str) else piece


def _on_text(change: Callable[[str, bool], Text]) -> PieceStep:
    """Leave tokens alone that already are bytes."""
    return lambda piece, first: piece if isinstance(piece, bytes) else change(piece, first)


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for.

    Printable Latin-1 characters stand for themselves, all other bytes for U+0100 upwards.
    Source: Radford et al. 2019, the GPT-2 tokenizer.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


def _byte_level(spec: Mapping[str, Any]) -> PieceStep:
    alphabet = _byte_level_alphabet()

    def change(token: str, first: bool) -> Text:
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:  # an added token that is not spelt in the alphabet
            return token.encode()

    return _on_text(change)


def _byte_fallback(spec: Mapping[str, Any]) -> PieceStep:
    def change(token: str, first: bool) -> Text:
        match = _BYTE_TOKEN.fullmatch(token)
        return bytes.fromhex(match[1]) if match else token

    return _on_text(change)


def _replace(spec: Mapping[str, Any]) -> PieceStep:
    if "String" not in spec["pattern"]:  # it would be tried on every token that is generated
        raise CheckpointError(
            "tokenizer decoder Replace has a regular expression as its pattern, whose time has no "
            "bound; supply a tokenizer.json whose decoder replaces plain text"
        )
    pattern, content = spec["pattern"]["String"], spec["content"]
    return _on_text(lambda token, first: token.replace(pattern, content))


def _metaspace(spec: Mapping[str, Any]) -> PieceStep:
    mark, keeps_first = spec["replacement"], spec["prepend_scheme"] == "never"
    return _on_text(
        lambda token, first: token.replace(mark, "" if first and not keeps_first else " ")
    )


def _word_piece(spec: Mapping[str, Any]) -> PieceStep:
    prefix, cleanup = spec["prefix"], spec["cleanup"]

    def change(token: str, first: bool) -> Text:
        if not first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        for old, new in _CLEANUPS if cleanup else ():
            token = token.replace(old, new)
        return token

    return _on_text(change)


def _strip(spec: Mapping[str, Any]) -> PieceStep:
    content: str = spec["content"]
    ends: tuple[int, int] = spec["start"], spec["stop"]

    def change(piece: Text, first: bool) -> Text:
        if isinstance(piece, bytes):
            return _strip_ends(piece, content.encode(), *ends)
        return _strip_ends(piece, content, *ends)

    return change


def _strip_ends(piece: AnyStr, content: AnyStr, start: int, stop: int) -> AnyStr:
    for _ in range(start):
        piece = piece.removeprefix(content)
    for _ in range(stop):
        piece = piece.removesuffix(content)
    return piece


def _join(spec: Mapping[str, Any]) -> PieceStep:
    return lambda token, first: token if first or isinstance(token, bytes) else f" {token}"


_STEPS: dict[str, Callable[[Mapping[str, Any]], PieceStep]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "Strip": _strip,
    "Join": _join,
}


def _compile(spec: Mapping[str, Any]) -> list[PieceStep]:
    """Turn a decoder's JSON into steps over one token."""
    try:
        check_growth("decoder", spec)
    except CheckpointError as error:
        raise CheckpointError(f"the tokenizer cannot be used: {error}") from None
    steps: list[PieceStep] = []
    fused = False
    for part in flatten(spec):
        kind = part["type"]
        if kind == "Fuse":
            fused = True
        elif fused and kind == "Strip" and part["stop"] == 0:
            steps.append(_only_first(_strip(part)))
        elif fused or kind not in _STEPS:
            place = " after Fuse" if fused else ""
            raise CheckpointError(
                f"tokenizer decoder {kind}{place} cannot work token by token; supported decoders: "
                f"Sequence, Fuse, {', '.join(_STEPS)}"
            )
        else:
            steps.append(_STEPS[kind](part))
    return steps


def _only_first(step: PieceStep) -> PieceStep:
    return lambda piece, first: step(piece, first) if first else piece
