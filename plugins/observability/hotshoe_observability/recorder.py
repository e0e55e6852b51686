"""Watches requests and counts what clients see. Called on the event loop, once for each step that
brought a request something; costs about a microsecond then.
"""

from __future__ import annotations

from collections.abc import Callable

from hotshoe_observability import table
from hotshoe_observability.counts import Counts
from hotshoe_server.extensions import RequestRecord


class Recorder:
    """See `hotshoe_server.extensions.RequestObserver`.

    Args:
        counts: Of the server as a whole.
        counts_of: Returns those of a model by its name; default: the same.
    """

    def __init__(self, counts: Counts, counts_of: Callable[[str], Counts] | None = None) -> None:
        self._counts = counts
        self._counts_of = counts_of or (lambda name: counts)
        self._last_s: dict[int, float] = {}

    def refuse(self, endpoint: str, error: str) -> None:
        self._counts.add(table.REFUSED, error)

    def answered(self, method: str, path: str, status: int, took_s: float) -> None:
        """See `hotshoe_server.extensions.Parts`."""
        if path in table.UNCOUNTED:
            return
        route = f"{path} {method}"
        named = route if route in table.ROUTES else f"{table.OTHER} {method}"
        self._counts.add(table.ANSWERED, f"{named} {status // 100}xx")
        self._counts.observe(table.ANSWER_TIME, took_s, value=named)
        self._counts.observe(table.ANSWER_TIMES, took_s)

    def begin(self, record: RequestRecord) -> None:
        self._counts_of(record.served).add(table.REQUESTS, record.endpoint)

    def advance(self, record: RequestRecord, num_tokens: int, now_s: float) -> None:
        if not num_tokens:
            return
        counts, last_s = self._counts_of(record.served), self._last_s.get(id(record))
        width = record.params.n  # sequences whose tokens come at once
        if last_s is None:
            counts.observe(table.TTFT, now_s - record.arrival_s)
            if num_tokens > width:
                counts.observe(table.ITL, 0.0, num_tokens - width)
        else:
            # Several steps may have come as one: each of their tokens took a part of the time.
            gap_s = (now_s - last_s) * min(1.0, width / num_tokens)
            counts.observe(table.ITL, gap_s, num_tokens)
        self._last_s[id(record)] = now_s

    def end(self, record: RequestRecord) -> None:
        self._last_s.pop(id(record), None)
        counts = self._counts_of(record.served)
        if record.error is not None:
            counts.add(table.FAILED, record.error)
            return
        for metric, number in measures(record).items():
            counts.observe(metric, number)


def measures(record: RequestRecord) -> dict[table.Metric, float]:
    """Return what an ended request adds to the histograms that have one number for each request."""
    timing, generated = record.timing, record.num_generated_tokens
    found: dict[table.Metric, float] = {
        table.E2E: record.end_s - record.arrival_s,
        table.PROMPT_LENGTH: record.num_prompt_tokens,
        table.COMPUTED_PROMPT: record.num_prompt_tokens - record.num_cached_tokens,
        table.GENERATED_LENGTH: generated,
        table.LONGEST: max(record.lengths.values(), default=generated),
        table.NUM_SEQUENCES: record.params.n,
    }
    if record.params.max_tokens is not None:
        found[table.MAX_TOKENS] = record.params.max_tokens
    if timing.scheduled_s:
        found[table.QUEUE] = max(0.0, timing.scheduled_s - timing.arrival_s)
    if timing.scheduled_s and timing.first_token_s:
        found[table.PREFILL] = timing.first_token_s - timing.scheduled_s
        found[table.INFERENCE] = timing.last_token_s - timing.scheduled_s
        found[table.DECODE] = timing.last_token_s - timing.first_token_s
    if generated > 1 and record.params.n == 1 and timing.first_token_s:
        found[table.TPOT] = (timing.last_token_s - timing.first_token_s) / (generated - 1)
    return found
