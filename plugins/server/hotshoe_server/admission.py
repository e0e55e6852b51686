"""Turns requests away while too many wait, or no engine runs, from their heads alone.

An overloaded server has the least time for what it will not do; so has one whose engine starts
anew. So a plain request to a generating endpoint is answered by the connection itself
(`hotshoe_server.protocol`), before there is a task or an application for it. All else goes the long
way, and so does every request while there is room; `hotshoe_server.route` refuses there in the same
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.guard import Guard
from hotshoe_server.state import ServerState

#: Requests with one of these headers get more in their answer than a refusal has.
_UNUSUAL = frozenset({b"origin", b"expect"})


class Admission:
    """Says who is turned away.

    Args:
        server: Whose queue and observers.
        guard: Who is not let in learns that first, the long way.
        paths: Of endpoints that generate; requests are POSTs to these.
    """

    def __init__(self, server: ServerState, guard: Guard, paths: Iterable[str]) -> None:
        self._server = server
        self._guard = guard
        self._paths = {path.encode(): path for path in paths}

    def __call__(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
        """Return how to refuse a POST; None: let it go on."""
        path = self._paths.get(target)
        if path is None or self._server.draining:
            return None
        try:
            self._server.check_queue()
        except (QueueFullError, EngineDeadError) as error:
            refusal = as_api_error(error)
        else:
            return None
        if any(name in _UNUSUAL for name, _ in headers) or not self._guard.knows(headers):
            return None
        for observer in self._server.observers:
            observer.refuse(path, refusal.code)
        for hear in self._server.answered:
            hear("POST", path, refusal.status, 0.0)
        return refusal
