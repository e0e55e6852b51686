"""Log probabilities in the forms of the two completion APIs.

Tokens are named by their text; where a token is part of a character only, by its bytes in escapes,
as OpenAI does. Values are finite: JSON knows no infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import TokenLogprobs
from hotshoe_server.schemas.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)

LOWEST = -9999.0


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Return what a token adds to a text, or its bytes in escapes, or the name of a special one."""
    piece = tokenizer.pieces[token_id]
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _namer(tokenizer: Tokenizer, as_ids: bool) -> Callable[[int], str]:
    """Return what names tokens: by their text, or as `token_id:5`."""
    return "token_id:{}".format if as_ids else partial(token_text, tokenizer)


def chat_logprobs(
    tokenizer: Tokenizer | None,
    token_ids: Sequence[int],
    positions: Sequence[TokenLogprobs],
    as_ids: bool = False,
) -> ChatLogprobs:
    """Return the log probabilities of generated tokens as chat answers have them.

    Without a tokenizer they are named by their ids.
    """
    content = []
    name = "token_id:{}".format if tokenizer is None else _namer(tokenizer, as_ids)

    def spelt(token_id: int) -> list[int] | None:
        return None if tokenizer is None else list(tokenizer.pieces[token_id])

    for token_id, position in zip(token_ids, positions, strict=True):
        rivals = zip(position.token_ids[1:], position.logprobs[1:], strict=True)
        content.append(
            TokenLogprob(
                name(token_id),
                max(position.logprobs[0], LOWEST),
                spelt(token_id),
                [
                    TopLogprob(
                        name(rival),
                        max(value, LOWEST),
                        spelt(rival),
                    )
                    for rival, value in rivals
                ],
            )
        )
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Gathers the parallel lists of a completion, position by position.

    Attributes:
        offset: Of the next position's text, in characters.
    """

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._name = _namer(tokenizer, as_ids)
        self.offset = 0

    def write(
        self, token_ids: Sequence[int], positions: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        """Return the lists of further positions; None is the prompt's first."""
        found = CompletionLogprobs([], [], [], [])
        for token_id, position in zip(token_ids, positions, strict=True):
            text = token_text(self._tokenizer, token_id)
            found.tokens.append(self._name(token_id))
            found.text_offset.append(self.offset)
            self.offset += len(text)
            if position is None:
                found.token_logprobs.append(None)
                found.top_logprobs.append(None)
                continue
            found.token_logprobs.append(max(position.logprobs[0], LOWEST))
            found.top_logprobs.append(self._top(position))
        return found

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        """Return the likely tokens, the one that came among them, be it likely or not."""
        (came, *rivals), (value, *values) = position.token_ids, position.logprobs
        top = dict(zip(rivals, values, strict=True)) | {came: value}
        found: dict[str, float] = {}
        for token_id, logprob in top.items():
            found.setdefault(self._name(token_id), max(logprob, LOWEST))
        return found


def joined(first: CompletionLogprobs | None, second: CompletionLogprobs) -> CompletionLogprobs:
    """Return the lists of two writes as one."""
    if first is None:
        return second
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def prompt_logprobs(
    tokenizer: Tokenizer | None, positions: Sequence[TokenLogprobs | None]
) -> PromptLogprobs:
    """Return those of a prompt, for each position by token id, as vLLM has them."""
    return [None if position is None else _by_id(tokenizer, position) for position in positions]


def _by_id(tokenizer: Tokenizer | None, position: TokenLogprobs) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for place, (token_id, value) in enumerate(
        zip(position.token_ids, position.logprobs, strict=True)
    ):
        entry: dict[str, object] = {
            "logprob": max(value, LOWEST),
            "rank": position.rank if place == 0 else place,
        }
        if tokenizer is not None:
            entry["decoded_token"] = token_text(tokenizer, token_id)
        found.setdefault(str(token_id), entry)
    return found
