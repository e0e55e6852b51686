"""From the engine's tokens to requests' text: detokenizes, stops at strings, gathers n sequences.

Work per token is constant: an update holds what is new and a mark in lists that only ever grow;
the cumulative `RequestOutput` is built when somebody asks for it. Knows no scheduler: requests to
abort are handed back. One per front end, called from one thread.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hotshoe.text.detokenizer import Detokenizer
from hotshoe.text.repetition import REASON, RepetitionMatcher
from hotshoe.text.stop import StopAutomaton, StopMatcher
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import (
    CompletionOutput,
    FinishReason,
    RequestOutput,
    RequestTiming,
    SamplingParams,
    TokenLogprobs,
    TokenOutput,
)


@dataclass(slots=True)
class _Sequence:
    """One sequence, as far as it has come. Lists only grow."""

    index: int
    detokenizer: Detokenizer | None
    matcher: StopMatcher | None
    repetition: RepetitionMatcher | None
    logprobs: list[TokenLogprobs] | None = None
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class _Request:
    """A request and its n sequences; `child_ids` are the engine's ids of these, in their order."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    automaton: StopAutomaton | None
    sequences: list[_Sequence] = field(default_factory=list)
    child_ids: list[str] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooled: bytes | None = None
    num_cached_tokens: int = 0
    num_finished: int = 0
    timing: RequestTiming = field(default_factory=RequestTiming)


@dataclass(slots=True)
class SequenceUpdate:
    """What one sequence gained in a step; empty when another sequence moved.

    `new_text` may be empty while a character or a possible stop string is incomplete, and may
    come without a token at the end. `new_logprobs` runs parallel to `new_token_ids`.
    """

    index: int
    new_text: str
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    error: str | None
    _sequence: _Sequence
    _num_texts: int
    _num_tokens: int
    _cumulative_logprob: float

    def completion(self) -> CompletionOutput:
        """Return the sequence as it was at this update. Copies: linear in its length."""
        logprobs = self._sequence.logprobs
        return CompletionOutput(
            index=self.index,
            text="".join(self._sequence.texts[: self._num_texts]),
            token_ids=self._sequence.token_ids[: self._num_tokens],
            logprobs=None if logprobs is None else logprobs[: self._num_tokens],
            cumulative_logprob=None if logprobs is None else self._cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )


@dataclass(slots=True)
class RequestUpdate:
    """What one request gained in a step: all n sequences, in order of index."""

    request_id: str
    finished: bool
    sequences: list[SequenceUpdate]
    _request: _Request

    @property
    def timing(self) -> RequestTiming:
        """When things happened to the request so far; the object is shared by its updates."""
        return self._request.timing

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._request.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Of these, those found in the prefix cache when the first sequence was started."""
        return self._request.num_cached_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all sequences up to this update."""
        return sum(sequence._num_tokens for sequence in self.sequences)

    @property
    def pooled(self) -> bytes | None:
        """The vector of a request that pools, as little-endian float32, once it has ended."""
        return self._request.pooled

    def output(self) -> RequestOutput:
        """Return everything known of the request at this update. Copies: linear in its length."""
        request = self._request
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[] if request.pooled else [s.completion() for s in self.sequences],
            prompt_logprobs=request.prompt_logprobs,
            num_cached_tokens=request.num_cached_tokens,
            finished=self.finished,
            timing=replace(request.timing),
            embedding=None if request.pooled is None else floats(request.pooled),
        )


def join_updates(updates: Sequence[RequestUpdate]) -> RequestUpdate:
    """Return updates of one request, in order, as one; they are used up."""
    joined = updates[-1]
    if len(updates) > 1:
        parts = zip(*(update.sequences for update in updates), strict=True)
        joined.sequences = [_join(part) for part in parts]
    return joined


class OutputProcessor:
    """Turns the engine's token outputs into updates of requests.

    Args:
        tokenizer: None leaves all texts empty; stop strings then never match.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, _Request] = {}
        self._children: dict[str, tuple[_Request, _Sequence]] = {}

    def __len__(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        child_ids: Sequence[str] = (),
        arrival_s: float | None = None,
    ) -> None:
        """Expect a request's tokens.

        Args:
            request_id: What updates will carry; unique among unfinished requests.
            prompt: Its text, when it came as text; only handed through.
            prompt_token_ids: Its tokens.
            params: The request's parameters.
            child_ids: The ids under which the engine runs the n sequences, in order of index;
                updates of them are gathered under `request_id`. Default: `request_id` is the id
                of the only one.
            arrival_s: When it arrived; default: now.
        """
        assert request_id not in self._requests, f"request {request_id} exists already"
        child_ids = list(child_ids) or [request_id]
        assert len(child_ids) == params.n, "one engine request per sequence"
        automaton = StopAutomaton(params.stop) if params.stop else None
        request = _Request(request_id, prompt, prompt_token_ids, params, automaton)
        request.child_ids = child_ids
        request.timing.arrival_s = time.monotonic() if arrival_s is None else arrival_s
        for index, child_id in enumerate(child_ids):
            assert child_id not in self._children, f"request {child_id} exists already"
            sequence = self._make_sequence(request, index)
            request.sequences.append(sequence)
            self._children[child_id] = (request, sequence)
        self._requests[request_id] = request

    @property
    def running_ids(self) -> list[str]:
        """The engine's ids of all unfinished sequences."""
        return list(self._children)

    def unfinished(self, request_id: str) -> list[str] | None:
        """Return the engine's ids of a request's unfinished sequences; None if it is unknown."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return [child for child in request.child_ids if child in self._children]

    def abort(self, request_id: str) -> list[str]:
        """Forget a request; return the engine's ids of its unfinished sequences, to be aborted."""
        request = self._requests.get(request_id)
        return [] if request is None else self._forget(request)

    def process(
        self, outputs: Sequence[TokenOutput], now_s: float | None = None
    ) -> tuple[list[RequestUpdate], list[str]]:
        """Take one step's tokens.

        Outputs of requests that are unknown (finished by a stop string or aborted since) are
        passed over. `now_s` is when the step ended; default: now.

        Returns:
            Updates of the requests that moved, and the engine's ids of sequences that hit a stop
            string, to be aborted there.
        """
        updates: dict[str, RequestUpdate] = {}
        to_abort: list[str] = []
        now_s = time.monotonic() if now_s is None else now_s
        for output in outputs:
            found = self._children.get(output.request_id)
            if found is None:
                continue
            request, sequence = found
            if output.finish_reason is not None or not sequence.token_ids:
                _note_ends(request, sequence.index, output)
            gained = _advance(request.params, sequence, output)
            if output.token_ids:
                request.timing.last_token_s = now_s
                request.timing.first_token_s = request.timing.first_token_s or now_s
            if sequence.finish_reason is not None:
                del self._children[output.request_id]
                request.num_finished += 1
                if output.finish_reason is None:
                    to_abort.append(output.request_id)
            self._merge(updates, request, gained)
        return list(updates.values()), to_abort

    def _make_sequence(self, request: _Request, index: int) -> _Sequence:
        params, tokenizer = request.params, self._tokenizer
        detokenizer = None
        if tokenizer is not None and params.detokenize:
            skipped = tokenizer.special_token_ids if params.skip_special_tokens else frozenset()
            detokenizer = Detokenizer(tokenizer.pieces, skipped, request.prompt_token_ids)
        matcher = None
        if request.automaton is not None:
            matcher = StopMatcher(request.automaton, params.include_stop_str_in_output)
        wanted = params.repetition_detection
        repetition = None if wanted is None else RepetitionMatcher(wanted, params.min_tokens)
        sequence = _Sequence(index, detokenizer, matcher, repetition)
        sequence.logprobs = None if params.logprobs is None else []
        return sequence

    def _merge(
        self, updates: dict[str, RequestUpdate], request: _Request, gained: SequenceUpdate
    ) -> None:
        """Join a sequence's update with those of its siblings from the same step."""
        update = updates.get(request.request_id)
        if update is None:
            single = len(request.child_ids) == 1
            sequences = [gained] if single else [_mark(s) for s in request.sequences]
            update = RequestUpdate(request.request_id, False, sequences, request)
            updates[request.request_id] = update
        else:
            gained = _join([update.sequences[gained.index], gained])
        update.sequences[gained.index] = gained
        if request.num_finished == len(request.child_ids):
            update.finished = True
            self._forget(request)

    def _forget(self, request: _Request) -> list[str]:
        del self._requests[request.request_id]
        return [child for child in request.child_ids if self._children.pop(child, None)]


def floats(vector: bytes) -> list[float]:
    """Return the entries of a vector of little-endian float32."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _note_ends(request: _Request, index: int, output: TokenOutput) -> None:
    """Book what comes with a sequence's first output, or with its last."""
    if index == 0:  # the others find what the first has computed
        request.num_cached_tokens = output.num_cached_tokens or request.num_cached_tokens
    if output.prompt_logprobs is not None and request.prompt_logprobs is None:
        request.prompt_logprobs = output.prompt_logprobs
    if output.pooled is not None:
        request.pooled = output.pooled
    request.timing.scheduled_s = request.timing.scheduled_s or output.scheduled_s


def _mark(
    sequence: _Sequence,
    text: str = "",
    token_ids: list[int] | None = None,
    logprobs: list[TokenLogprobs] | None = None,
) -> SequenceUpdate:
    """Describe where a sequence is now, and what brought it there."""
    return SequenceUpdate(
        sequence.index,
        text,
        token_ids or [],
        logprobs,
        sequence.finish_reason,
        sequence.stop_reason,
        sequence.error,
        sequence,
        len(sequence.texts),
        len(sequence.token_ids),
        sequence.cumulative_logprob,
    )


def _join(parts: Sequence[SequenceUpdate]) -> SequenceUpdate:
    """Make one update of several of a sequence, in order."""
    joined = parts[-1]
    if joined.new_logprobs is not None or any(part.new_logprobs for part in parts):
        joined.new_logprobs = [entry for part in parts for entry in part.new_logprobs or ()]
    joined.new_token_ids = [token_id for part in parts for token_id in part.new_token_ids]
    joined.new_text = "".join(part.new_text for part in parts)
    return joined


def _advance(params: SamplingParams, sequence: _Sequence, output: TokenOutput) -> SequenceUpdate:
    """Append an output's tokens to a sequence, up to a stop string or a repetition."""
    if sequence.repetition is not None:
        output = sequence.repetition.cut(output)
    text, num_kept = _read_text(params, sequence, output)
    token_ids, logprobs = output.token_ids, None
    if num_kept < len(token_ids):
        token_ids = token_ids[:num_kept]
    sequence.token_ids += token_ids
    if text:
        sequence.texts.append(text)
    if sequence.logprobs is not None:
        logprobs = (output.logprobs or [])[:num_kept]
        sequence.logprobs.extend(logprobs)
        sequence.cumulative_logprob += sum(x.logprobs[0] for x in logprobs)
    if sequence.matcher is not None and sequence.matcher.matched is not None:
        sequence.finish_reason = FinishReason.STOP
        sequence.stop_reason = sequence.matcher.matched
    elif output.finish_reason is not None:
        sequence.finish_reason = output.finish_reason
        repeats = output.finish_reason is FinishReason.REPETITION
        sequence.stop_reason = REASON if repeats else output.stop_token_id
        sequence.error = output.error
    return _mark(sequence, text, token_ids, logprobs)


def _read_text(params: SamplingParams, sequence: _Sequence, output: TokenOutput) -> tuple[str, int]:
    """Return the text an output adds, and how many of its tokens stay."""
    detokenizer, matcher = sequence.detokenizer, sequence.matcher
    num_tokens = len(output.token_ids)
    if detokenizer is None:
        return "", num_tokens
    shown = output.token_ids
    if output.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output:
        shown = shown[:-1]  # the token that ended the sequence is not part of the text
    finished = output.finish_reason is not None
    if matcher is None:
        text = detokenizer.push(shown)
        return text + detokenizer.finish() if finished else text, num_tokens
    text, length = "", len(sequence.token_ids)
    for count, token_id in enumerate(shown, start=1):
        may_stop = length + count >= params.min_tokens
        text += matcher.push(detokenizer.push((token_id,)), may_stop)
        if matcher.matched is not None:
            return text, count
    if finished:
        text += matcher.push(detokenizer.finish(), length + num_tokens >= params.min_tokens)
        text += "" if matcher.matched is not None else matcher.flush()
    return text, num_tokens
