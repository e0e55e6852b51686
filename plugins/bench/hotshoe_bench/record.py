"""What one request came to: its times, its lengths, or the cause of its failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hotshoe_bench.datasets import Query
from hotshoe_bench.sse import Stream

MS = 1e3


@dataclass(slots=True)
class Exchange:
    """One request as the client saw it, before its answer is read.

    Attributes:
        scheduled_s, sent_s: When it should have been sent, and was; on one clock with `pieces`.
        pieces: Moment and bytes of what arrived.
        failure: Cause in few words; None if a complete answer came.
        detail: More words on the failure.
    """

    scheduled_s: float
    sent_s: float = 0.0
    ended_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    failure: str | None = None
    detail: str = ""


@dataclass(slots=True)
class Record:
    """One request's result. Times of a failed request are None.

    Attributes:
        input_len, output_len: Tokens of prompt and answer: by the server's count if it gave one,
            else as asked, and as many as came in pieces.
        lag_ms: How late the client itself was in sending it.
        ttft_ms: From sent to the first token.
        e2e_ms: From sent to the end of the answer.
        tpot_ms: (e2e − ttft) / (output_len − 1); None for a single token.
        itl_ms: Gaps between arrivals of tokens.
        failure, detail: As in `Exchange`.
        cached_len: Prompt tokens that the server found in its prefix cache; None if it gave none.
    """

    input_len: int
    output_len: int
    sent_s: float
    ended_s: float
    lag_ms: float
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: list[float] = field(default_factory=list)
    failure: str | None = None
    detail: str = ""
    cached_len: int | None = None


def make_record(query: Query, exchange: Exchange, stream: Stream, exact: bool) -> Record:
    """Judge one request.

    Args:
        query: What was asked.
        exchange: How the transport went.
        stream: What the body said.
        exact: Whether an answer of another length than asked for is a failure.
    """
    record = Record(
        input_len=stream.num_prompt_tokens or query.input_len,
        output_len=stream.num_output_tokens or len(stream.token_times_s),
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        lag_ms=MS * (exchange.sent_s - exchange.scheduled_s),
        failure=exchange.failure,
        detail=exchange.detail,
        cached_len=stream.num_cached_tokens,
    )
    if record.failure is None:
        record.failure, record.detail = _verdict(query, stream, record.output_len, exact)
    if record.failure is None and stream.end_s is not None:
        _fill_times(record, stream.token_times_s or [stream.end_s], stream.end_s)
    return record


def _verdict(query: Query, stream: Stream, output_len: int, exact: bool) -> tuple[str | None, str]:
    if stream.error is not None:
        return "error in stream", stream.error
    if stream.finish_reason is None:
        return "stream ended early", f"after {output_len} tokens"
    if stream.finish_reason in ("error", "abort"):
        return "request ended by server", stream.finish_reason
    if output_len < 1:
        return "empty answer", stream.finish_reason
    if exact and stream.num_output_tokens not in (None, query.output_len):
        return "wrong length", f"{output_len} tokens instead of {query.output_len}"
    return None, ""


def _fill_times(record: Record, arrivals_s: list[float], end_s: float) -> None:
    first = arrivals_s[0]
    record.ttft_ms = MS * (first - record.sent_s)
    record.e2e_ms = MS * (end_s - record.sent_s)
    record.itl_ms = [MS * (b - a) for a, b in pairwise(arrivals_s)]
    if record.output_len > 1:
        record.tpot_ms = (record.e2e_ms - record.ttft_ms) / (record.output_len - 1)
