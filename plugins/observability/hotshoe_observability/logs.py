"""A log line for every request. Text of prompts and answers is never in it, nor are keys."""

from __future__ import annotations

import logging
from typing import Any

from hotshoe_server.extensions import RequestRecord

MS = 1e3
REQUEST_LOGGER = "hotshoe.request"


class RequestLog:
    """Logs every request when it ends. See `hotshoe_server.extensions.RequestObserver`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(REQUEST_LOGGER)
        self._logger.setLevel(logging.INFO)

    def refuse(self, endpoint: str, error: str) -> None:
        """Nothing: an overload would fill the disk."""

    def begin(self, record: RequestRecord) -> None:
        """Nothing yet."""

    def advance(self, record: RequestRecord, num_tokens: int, now_s: float) -> None:
        """Nothing: a line for each token would be too many."""

    def end(self, record: RequestRecord) -> None:
        level = logging.INFO if record.error is None else logging.WARNING
        self._logger.log(level, "request ended", extra={"fields": describe(record)})


def describe(record: RequestRecord) -> dict[str, Any]:
    """Return a request's numbers by name; times in milliseconds."""
    timing = record.timing
    first_s = timing.first_token_s - record.arrival_s if timing.first_token_s else None
    waited_s = timing.scheduled_s - timing.arrival_s if timing.scheduled_s else None
    return {
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "model": record.model,
        "stream": record.stream,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "generated_tokens": record.num_generated_tokens,
        "finish_reasons": record.finish_reasons,
        "error": record.error,
        "queue_ms": _ms(waited_s),
        "ttft_ms": _ms(first_s),
        "total_ms": _ms(record.end_s - record.arrival_s),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(MS * seconds, 3)
