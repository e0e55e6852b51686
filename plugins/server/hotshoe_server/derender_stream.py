"""Chunks of a stream of `/inference/v1/generate`, read as chunks of chat and of completions.

One request reads one chunk. Nothing is kept between two of them: the client carries the tokens that
came before (`stream_state`), and they are read again, which costs as much as the text is long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hotshoe.text.output_processor import OutputProcessor, RequestUpdate, SequenceUpdate
from hotshoe.text.parsing import Event, ToolCallEnd
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import FinishReason, SamplingParams, TokenOutput
from hotshoe_server.chat_stream import delta_of
from hotshoe_server.conversation import Dialogue
from hotshoe_server.errors import ApiError
from hotshoe_server.generation import finish_reason
from hotshoe_server.logprobs import token_text
from hotshoe_server.schemas.answers import (
    ChatChunk,
    ChatLogprobs,
    ChunkChoice,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.schemas.render import (
    ChunkRead,
    DerenderChat,
    DerenderCompletion,
    Derendered,
    LogprobsRead,
    NewTokens,
    RivalRead,
    StreamState,
    usage_read,
)
from hotshoe_server.state import Served


def outputs(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    reason: str | None,
    stopped_by: str | int | None,
    name: str = "0",
) -> Iterator[TokenOutput]:
    """Yield what an engine would have given, token by token.

    Args:
        tokenizer: Knows which tokens end a text.
        tokens: Of a sequence, or new ones of it.
        reason: Why it ends with the last of them; None if it goes on.
        stopped_by: The stop string or token, if there was one.
        name: Of the sequence.
    """
    if reason is None or not tokens:
        yield from (TokenOutput(name, [token]) for token in tokens)
        if reason is not None:
            yield TokenOutput(name, [], finish_reason=FinishReason(reason))
        return
    *others, last = tokens
    yield from (TokenOutput(name, [token]) for token in others)
    found = FinishReason(reason)
    if found is not FinishReason.STOP:
        yield TokenOutput(name, [last], finish_reason=found)
    elif last == stopped_by or last in tokenizer.special_token_ids:
        stop = last if last == stopped_by else None
        yield TokenOutput(name, [last], finish_reason=found, stop_token_id=stop)
    else:  # by a stop string, or with its grammar: the last token is part of the text
        yield TokenOutput(name, [last])
        yield TokenOutput(name, [], finish_reason=found)


def replayed(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    params: SamplingParams,
    given: Iterable[Iterable[TokenOutput]],
) -> list[list[RequestUpdate]]:
    """Return the updates that an engine would have given, for each group of outputs.

    Args:
        tokenizer: Writes the tokens as text.
        prompt: What they follow.
        params: Of `n` sequences, which `given` names "0", "1" and so on.
        given: Outputs as they would have come.
    """
    processor, names = OutputProcessor(tokenizer), [str(i) for i in range(params.n)]
    processor.add("", None, list(prompt), replace(params, logprobs=None), names)
    return [
        [update for output in group for update in processor.process([output])[0]] for group in given
    ]


def _before_and_new(
    tokenizer: Tokenizer, params: SamplingParams, state: StreamState, choice: NewTokens
) -> list[list[SequenceUpdate]]:
    """Return the updates of the tokens that a client carries, and those of a chunk's."""
    before = outputs(tokenizer, state.token_ids, None, None)
    new = outputs(tokenizer, choice.token_ids, choice.finish_reason, choice.stop_reason)
    groups = replayed(tokenizer, [], replace(params, n=1), [before, new])
    return [[update.sequences[0] for update in group] for group in groups]


def check_chunk(served: Served, chunk: ChunkRead, state: StreamState) -> None:
    """Refuse tokens that are none, and more of them than a text has.

    Raises:
        ApiError: The field is named.
    """
    vocab_size, limit = served.client.info.vocab_size, served.client.info.max_model_len
    new = [token for choice in chunk.choices for token in choice.token_ids]
    for field, ids in (("stream_state", state.token_ids), ("generate_chunk", new)):
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise ApiError("invalid_value", f"token ids lie between 0 and {vocab_size - 1}", field)
    count = len(state.token_ids) + len(new)
    if count > limit:
        message = f"there are {count} tokens, but a text has {limit} at most"
        raise ApiError("invalid_value", message, "stream_state")


async def chat_chunk(
    body: DerenderChat, model: str, served: Served, dialogue: Dialogue
) -> Derendered:
    """Read a chunk as one of a message.

    Raises:
        ApiError: It cannot be read; the field is named.
    """
    chunk, state = body.chunk(), body.stream_state or StreamState()
    check_chunk(served, chunk, state)
    request = body.chat_request or ChatRequest(messages=[])
    names = served.config.reasoning_names if request.include_reasoning else ()
    read = partial(_read_chat, served.renderer.tokenizer, dialogue, state)
    answer = ChatChunk(chunk.request_id, int(time.time()), model, served.fingerprint, [])
    for choice in chunk.choices:
        answer.choices.append(await served.renderer.run(partial(read, choice, names)))
    if chunk.usage is not None:
        found = chunk.usage
        answer.usage = usage_read(
            body.prompt_tokens or found.prompt_tokens, found.completion_tokens
        )
    return Derendered(answer, state.after(chunk))


def _read_chat(
    tokenizer: Tokenizer,
    dialogue: Dialogue,
    state: StreamState,
    choice: NewTokens,
    names: Sequence[str],
) -> ChunkChoice:
    reader, events = dialogue.reader(), list[list[Event]]()
    updates = _before_and_new(tokenizer, dialogue.params, state, choice)
    for group in updates:
        events.append([event for update in group for event in reader.read(update)])
    deltas = [d for event in events[1] if (d := delta_of(event, names)) is not None]
    made = ChunkChoice(choice.index, _joined(deltas), None, None)
    made.logprobs = chat_logprobs_read(tokenizer, choice.logprobs)
    if not state.started:
        made.delta.role = "assistant"
    if reader.finished and (last := updates[1][-1:]):
        calls = any(isinstance(event, ToolCallEnd) for group in events for event in group)
        made.finish_reason = finish_reason(last[0].finish_reason, calls)
        made.stop_reason = last[0].stop_reason
    return made


def _joined(deltas: Iterable[Delta]) -> Delta:
    """Return one delta that says what several do."""
    joint = Delta()
    for delta in deltas:
        for name in ("content", "reasoning_content", "reasoning"):
            if (text := getattr(delta, name)) is not None:
                setattr(joint, name, (getattr(joint, name) or "") + text)
        for call in delta.tool_calls or ():
            joint.tool_calls = joint.tool_calls or []
            last = joint.tool_calls[-1] if joint.tool_calls else None
            if last is None or last.index != call.index or call.id is not None:
                joint.tool_calls.append(call)
            elif last.function is not None and call.function is not None:
                more = call.function.arguments or ""
                last.function.arguments = (last.function.arguments or "") + more
    return joint


async def completion_chunk(
    body: DerenderCompletion, model: str, served: Served, params: SamplingParams
) -> Derendered:
    """Read a chunk as one of a text.

    Raises:
        ApiError: It cannot be read; the field is named.
    """
    chunk, state = body.chunk(), body.stream_state or StreamState()
    check_chunk(served, chunk, state)
    read = partial(_read_text, served.renderer.tokenizer, params, state)
    answer = CompletionAnswer(chunk.request_id, int(time.time()), model, served.fingerprint, [])
    for choice in chunk.choices:
        answer.choices.append(await served.renderer.run(partial(read, choice)))
    if chunk.usage is not None:
        counted = sum(body.prompt_tokens or ()) or chunk.usage.prompt_tokens
        answer.usage = usage_read(counted, chunk.usage.completion_tokens)
    return Derendered(answer, state.after(chunk))


def _read_text(
    tokenizer: Tokenizer, params: SamplingParams, state: StreamState, choice: NewTokens
) -> CompletionChoice:
    before, updates = _before_and_new(tokenizer, params, state, choice)
    ended = any(update.finish_reason is not None for update in before)
    text = "" if ended else "".join(update.new_text for update in updates)
    offset = sum(len(update.new_text) for update in before)
    logprobs = completion_logprobs_read(tokenizer, choice.logprobs, offset)
    made = CompletionChoice(choice.index, text, logprobs, None)
    if updates and updates[-1].finish_reason is not None and not ended:
        made.finish_reason = finish_reason(updates[-1].finish_reason)
        made.stop_reason = updates[-1].stop_reason
    return made


def _named(tokenizer: Tokenizer, read: RivalRead) -> tuple[str, float, list[int]]:
    """Return a token's text, value and bytes; one that is named by its id has none yet."""
    number = read.token.removeprefix("token_id:")
    is_id = number != read.token and number.isascii() and number.isdecimal() and len(number) < 10
    piece = tokenizer.pieces[int(number)] if is_id else b""
    if not piece:  # it is a text, or of no token that is known
        return read.token, read.logprob, read.bytes or list(read.token.encode())
    return token_text(tokenizer, int(number)), read.logprob, list(piece)


def chat_logprobs_read(tokenizer: Tokenizer, read: LogprobsRead | None) -> ChatLogprobs | None:
    """Return log probabilities as chat has them, with the names of the tokens."""
    if read is None or read.content is None:
        return None
    content = [
        TokenLogprob(
            *_named(tokenizer, entry),
            [TopLogprob(*_named(tokenizer, rival)) for rival in entry.top_logprobs],
        )
        for entry in read.content
    ]
    return ChatLogprobs(content)


def completion_logprobs_read(
    tokenizer: Tokenizer, read: LogprobsRead | None, offset: int = 0
) -> CompletionLogprobs | None:
    """Return log probabilities as completions have them; `offset` is where their text begins."""
    written = chat_logprobs_read(tokenizer, read)
    if written is None:
        return None
    found = CompletionLogprobs([], [], [], [])
    for entry in written.content:
        top: Mapping[str, float] = {rival.token: rival.logprob for rival in entry.top_logprobs}
        found.tokens.append(entry.token)
        found.token_logprobs.append(entry.logprob)
        found.top_logprobs.append({entry.token: entry.logprob, **top})
        found.text_offset.append(offset)
        offset += len(entry.token)
    return found
