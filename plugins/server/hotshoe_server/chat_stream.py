"""Chat answers as a stream of chunks.

The usual chunk, more text and nothing else, is put together from prepared bytes; every other one
is a `ChatChunk`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.types import TokenLogprobs
from hotshoe_server.conversation import Dialogue, Reader
from hotshoe_server.generation import finish_reason, usage_of
from hotshoe_server.logprobs import chat_logprobs, prompt_logprobs
from hotshoe_server.schemas.answers import (
    ChatChunk,
    ChunkChoice,
    Delta,
    FunctionAnswer,
    ToolCallDelta,
    Usage,
)
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.sse import DONE, event, json_text
from hotshoe_server.state import Served

#: Where the text of a chunk is.
_TEXT = b'{"content":""'


@dataclass(slots=True)
class _Choice:
    """One sequence on its way."""

    index: int
    reader: Reader
    #: A chunk of text, what is before the text and after it; None where chunks have more.
    frame: tuple[bytes, bytes] | None
    waiting: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_calls: int = 0
    started: bool = False


class ChatStream:
    """Writes one request's chunks.

    Args:
        served: Where the tokenizer is.
        body: What was asked.
        dialogue: What is run.
        id: The answer's.
        model: Its name in the answer.
    """

    def __init__(
        self, served: Served, body: ChatRequest, dialogue: Dialogue, id: str, model: str
    ) -> None:
        self._served = served
        self._body = body
        self._dialogue = dialogue
        self._chunk = ChatChunk(id, int(time.time()), model, served.fingerprint, [])
        options = body.stream_options
        self._usage_at_end = options is not None and options.include_usage
        self._begun = False
        self._usage_always = options is not None and options.continuous_usage_stats
        if self._usage_at_end:
            self._chunk.usage = None
        detailed = body.logprobs or body.return_token_ids or self._usage_always
        self._choices = [
            _Choice(index, reader, self._frame(index) if reader.plain and not detailed else None)
            for index in range(dialogue.params.n)
            for reader in (dialogue.reader(),)
        ]

    async def events(self, updates: AsyncIterator[RequestUpdate]) -> AsyncIterator[bytes]:
        """Yield events until the request has ended."""
        update: RequestUpdate | None = None
        async with aclosing(updates):  # type: ignore[type-var]
            async for update in updates:
                if not self._begun:
                    await self._begin(update)
                found = [self._advance(sequence, update) for sequence in update.sequences]
                if chunk := found[0] if len(found) == 1 else b"".join(found):
                    yield chunk
        assert update is not None, "a stream of updates ends with a finished one"
        if self._usage_at_end:
            self._chunk.choices = []
            self._chunk.usage = self._usage(update)
            yield event(self._chunk)
        yield DONE

    def _usage(self, update: RequestUpdate) -> Usage:
        count = sum(choice.reader.num_reasoning_tokens for choice in self._choices)
        return usage_of(update, num_reasoning_tokens=count)

    def _advance(self, sequence: SequenceUpdate, update: RequestUpdate) -> bytes:
        """Return the chunks of what one sequence gained."""
        choice = self._choices[sequence.index]
        if choice.reader.finished:
            return b""
        if choice.frame is not None and sequence.finish_reason is None:
            opening, text, (head, tail) = (
                self._open(choice),
                sequence.new_text,
                choice.frame,
            )
            return opening + head + json_text(text) + tail if text else opening
        events = choice.reader.read(sequence)
        if self._usage_always:
            self._chunk.usage = self._usage(update)
        return self._open(choice) + self._careful(choice, sequence, events)

    async def _begin(self, update: RequestUpdate) -> None:
        """Put into the first chunk, of whichever choice, what is said of the prompt."""
        self._begun = True
        if self._body.return_token_ids:
            self._chunk.prompt_token_ids = self._dialogue.rendered.token_ids
        if self._body.prompt_logprobs is not None:
            renderer, found = self._served.renderer, update.output().prompt_logprobs or []
            write = partial(prompt_logprobs, renderer.tokenizer, found)
            self._chunk.prompt_logprobs = await renderer.run(write)

    def _open(self, choice: _Choice) -> bytes:
        """Return the chunk that begins a message, the first time."""
        if choice.started:
            return b""
        choice.started = True
        first = ChunkChoice(
            choice.index, Delta(role="assistant", content=self._body.echoed()), None, None
        )
        written = self._write(first)
        self._chunk.prompt_token_ids = self._chunk.prompt_logprobs = None
        return written

    def _careful(self, choice: _Choice, sequence: SequenceUpdate, events: Sequence[Event]) -> bytes:
        """Return the chunks of any news, the end of the message included."""
        if sequence.new_logprobs:
            choice.waiting += list(zip(sequence.new_token_ids, sequence.new_logprobs, strict=True))
        choice.token_ids += sequence.new_token_ids
        choice.num_calls += sum(isinstance(e, ToolCallEnd) for e in events)
        deltas = [d for e in events if (d := delta_of(e, self._names(e))) is not None]
        written = [self._write(self._choice(choice, delta)) for delta in deltas]
        if choice.reader.finished:
            last = self._choice(choice, Delta())
            last.finish_reason = finish_reason(sequence.finish_reason, choice.num_calls > 0)
            last.stop_reason = sequence.stop_reason
            written.append(self._write(last))
        return b"".join(written)

    def _choice(self, choice: _Choice, delta: Delta) -> ChunkChoice:
        """Return a chunk's choice, with the log probabilities that wait for one."""
        made = ChunkChoice(choice.index, delta, None, None)
        if choice.waiting:
            ids, positions = zip(*choice.waiting, strict=True)
            as_ids = self._body.return_tokens_as_token_ids
            made.logprobs = chat_logprobs(self._served.renderer.tokenizer, ids, positions, as_ids)
            choice.waiting = []
        if self._body.return_token_ids:
            made.token_ids, choice.token_ids = choice.token_ids, []
        return made

    def _names(self, found: Event) -> Sequence[str]:
        """Return the fields that get an event's text, if it is reasoning that is wanted."""
        wanted = isinstance(found, ReasoningDelta) and self._body.include_reasoning
        return self._served.config.reasoning_names if wanted else ()

    def _write(self, choice: ChunkChoice) -> bytes:
        self._chunk.choices = [choice]
        return event(self._chunk)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """Return the bytes around the text in a chunk of text."""
        whole = self._write(ChunkChoice(index, Delta(content=""), None, None))
        head, mark, tail = whole.partition(_TEXT)
        assert mark, "ChunkChoice is written differently"
        return head + mark[:-2], tail


def delta_of(found: Event, reasoning_names: Sequence[str]) -> Delta | None:
    """Return what an event adds to a message, None when nothing.

    Args:
        found: What a parser found.
        reasoning_names: Fields that have its reasoning; none where it is left out.
    """
    match found:
        case ContentDelta(text) | MalformedCall(text, index=None):
            return Delta(content=text)
        case ReasoningDelta(text) if reasoning_names:
            return Delta(**dict.fromkeys(reasoning_names, text))
        case ToolCallStart(index, name, id):
            named = FunctionAnswer(name, "")
            return _call(ToolCallDelta(index, id or new_call_id(), "function", named))
        case ToolCallArguments(index, text):
            return _call(ToolCallDelta(index, function=FunctionAnswer(arguments=text)))
    return None  # parts of a call that turned out to be none have been sent already


def _call(delta: ToolCallDelta) -> Delta:
    return Delta(tool_calls=[delta])


def new_call_id() -> str:
    """Return an id for a tool call."""
    return f"call_{secrets.token_hex(12)}"
