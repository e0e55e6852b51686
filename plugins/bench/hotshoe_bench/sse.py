"""Reads a recorded stream of server-sent events after it has ended.

While a request runs, its client only stamps and keeps what arrives, so that reading one stream
never delays the clock of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None

    def has_tokens(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Stream:
    """What one stream said.

    Attributes:
        token_times_s: When each event with new tokens arrived.
        end_s: When the last event about the answer arrived; None if there was none.
        num_prompt_tokens, num_output_tokens: By the server's count; None if it gave none.
        num_cached_tokens: Of the prompt, found in the server's prefix cache; None if it gave none.
        finish_reason: Why the answer ended; None if the stream broke off.
        done: Whether the closing `[DONE]` came.
        error: What went wrong by the server's account, or what could not be read.
    """

    token_times_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None


#: What decoding raises at data that is no event, or no UTF-8.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(_Event)


def read_stream(pieces: Iterable[tuple[float, bytes]]) -> Stream:
    """Read stamped pieces of a body, wherever they were cut.

    An event belongs to the moment its last byte arrived.
    """
    stream = Stream()
    for moment, data in _events(pieces):
        if data == b"[DONE]":
            stream.done = True
            continue
        try:
            event = _decoder.decode(data)
        except UNREADABLE as error:
            stream.error = f"not a completion event: {error}"
            break
        if event.error is not None:
            stream.error = _message(event.error)
            break
        _take(stream, event, moment)
    return stream


def _events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Cut the body into the data of its events; comments and other fields are passed over."""
    unfinished: list[bytes] = []  # joined once its end has come, however many pieces it has
    for moment, piece in pieces:
        unfinished.append(piece)
        if b"\n" not in piece:
            continue
        *lines, rest = b"".join(unfinished).split(b"\n")
        unfinished = [rest]
        for line in lines:
            if line.startswith(b"data:"):
                yield moment, line[5:].strip()


def _take(stream: Stream, event: _Event, moment: float) -> None:
    if event.usage is not None:
        stream.num_prompt_tokens = event.usage.prompt_tokens
        stream.num_output_tokens = event.usage.completion_tokens
        if event.usage.prompt_tokens_details is not None:
            stream.num_cached_tokens = event.usage.prompt_tokens_details.cached_tokens
    for choice in event.choices:
        stream.end_s = moment
        stream.finish_reason = choice.finish_reason or stream.finish_reason
        # An event of /v1/completions without text still is a token, of an incomplete character or
        # a special one, unless all it does is to end the answer.
        if choice.delta is not None:
            new = choice.delta.has_tokens()
        else:
            new = bool(choice.text) or choice.finish_reason is None
        if new:
            stream.token_times_s.append(moment)


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)
