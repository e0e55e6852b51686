"""What a process of the server writes to stderr: lines for people, or JSON objects, one a line.

Faults are logged, as anywhere; what goes as it should is said by the function that `start_logs`
returns.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hotshoe.cli.session import say
from hotshoe_server.config import ServerConfig

#: What the command says, where that is logged.
COMMAND = logging.getLogger("hotshoe.serve")
#: uvicorn's, with a line for each HTTP request.
ACCESS = logging.getLogger("uvicorn.access")


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


def start_logs(config: ServerConfig) -> Callable[[str], None]:
    """Give all log lines of this process their form; return what says a line of the command's.

    May be called again, for the sake of libraries that came meanwhile with handlers of their own.
    """
    if config.access_log:
        ACCESS.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter())
        COMMAND.setLevel(logging.INFO)
        _take_all(handler)
        return COMMAND.info
    if config.access_log:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        ACCESS.handlers, ACCESS.propagate = [handler], False
    return say


def _take_all(handler: logging.Handler) -> None:
    """Send all log lines of this process to one handler, instead of where they went."""
    logging.getLogger().handlers = [handler]
    for name in list(logging.Logger.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers:
            logger.handlers = []
            logger.propagate = True
