"""Log lines as JSON objects, and one for every request. Text of prompts and answers is never in
them, nor are keys.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from hotshoe_server.extensions import RequestRecord

MS = 1e3
REQUEST_LOGGER = "hotshoe.request"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what the call's `extra` adds."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Send all log lines of this process to stderr as JSON, instead of where they went."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    for name in list(logging.Logger.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers:
            logger.handlers = []
            logger.propagate = True
    logging.getLogger(REQUEST_LOGGER).setLevel(logging.INFO)


class RequestLog:
    """Logs every request when it ends. See `hotshoe_server.extensions.RequestObserver`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(REQUEST_LOGGER)

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
