"""What stands in front of the application: who is let in, and from where.

Requests are turned away while too many wait, or no engine runs, from their heads alone.

An overloaded server has the least time for what it will not do; so has one whose engine starts
anew. So a plain request to a generating endpoint is answered by the connection itself
(`hotshoe_server.protocol`), before there is a task or an application for it. All else goes the long
way, and so does every request while there is room; `hotshoe_server.route` refuses there in the same
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.guard import ADMIN_SOCKET, Guard
from hotshoe_server.protocol import let_in
from hotshoe_server.route import error_response
from hotshoe_server.state import ServerState, TurnAway

RETRY_AFTER_LOADING_S = 2

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


class Front:
    """What is served: `/live` alone while the model loads, the application afterwards."""

    def __init__(self) -> None:
        self.app: ASGIApp = answer_while_loading
        self.refuse: TurnAway = let_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on."""
        await self.app(scope, receive, send)

    def turn_away(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
        """Ask who knows whether there is room."""
        return self.refuse(target, headers)


async def answer_while_loading(scope: Scope, receive: Receive, send: Send) -> None:
    """Say that the process lives, and that the model is being loaded."""
    from starlette.responses import JSONResponse

    if scope["path"] == "/live":
        await JSONResponse({"status": "live"})(scope, receive, send)
        return
    error = ApiError("loading", retry_after_s=RETRY_AFTER_LOADING_S)
    await error_response(error)(scope, receive, send)


class AdminDoor:
    """Marks what comes through the admin socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, marked."""
        scope[ADMIN_SOCKET] = True
        await self._app(scope, receive, send)
