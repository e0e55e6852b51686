"""Incremental detokenization: token ids in, finished characters out, constant work per token.

The bytes of each token are looked up and run through an incremental UTF-8 decoder, which holds
back an unfinished character. Knows nothing of stop strings. One `Detokenizer` per sequence, made
by the output processor.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Collection, Iterable, Sequence

from hotshoe.text.pieces import TokenPieces

_MAX_PENDING_BYTES = 3  # of a UTF-8 character of four


class Detokenizer:
    """Turns one sequence's tokens into text.

    The pieces join to what the tokenizer makes of all tokens at once. One difference is kept on
    purpose: where a run of byte-fallback tokens is not valid UTF-8, only its invalid bytes become
    U+FFFD here, so that valid characters need not wait for the run to end.

    Args:
        pieces: The tokenizer's table.
        skipped: Token ids that leave no text, such as the special tokens.
        prompt_token_ids: What the tokens follow: it decides whether a first token keeps its
            leading space, and it may end within a character that the output completes.
    """

    __slots__ = ("_first", "_held", "_pieces", "_skipped")

    def __init__(
        self,
        pieces: TokenPieces,
        skipped: Collection[int] = frozenset(),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._first = True
        self._held = b""  # of a character that is not finished
        self._decode(self._tail(prompt_token_ids))

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the characters that these tokens finish."""
        skipped, pieces = self._skipped, self._pieces
        if self._first:
            found = [self._piece(t) for t in token_ids if t not in skipped]
        else:
            found = [pieces[t] for t in token_ids if t not in skipped]
        return self._decode(b"".join(found))

    def finish(self) -> str:
        """Return what is held back: U+FFFD for an unfinished character, else nothing."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, final: bool = False) -> str:
        if self._held:
            data = self._held + data
        text, used = utf_8_decode(data, "replace", final)
        self._held = data[used:]
        return text

    def _piece(self, token_id: int) -> bytes:
        if not self._first:
            return self._pieces[token_id]
        piece = self._pieces.make(token_id, first=True)
        self._first = piece is None
        return piece or b""

    def _tail(self, token_ids: Sequence[int]) -> bytes:
        """Return enough of the prompt's last bytes to hold any unfinished character."""
        tail, pieces = b"", self._pieces
        for token_id in reversed(token_ids):
            if token_id not in self._skipped:
                tail = pieces[token_id] + tail
                self._first = self._first and token_id not in pieces  # unknown ids are not kept
            if len(tail) > _MAX_PENDING_BYTES:
                break
        return tail
