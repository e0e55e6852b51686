"""Serves the page at `/` and its files below `/ui/`.

The files hold nothing secret and are the same for everybody, so they need no key; what they show
comes from endpoints that do. A strict policy keeps the page from loading or sending anything
anywhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.responses import Response

from hotshoe_server.call import Call
from hotshoe_server.extensions import Endpoint, Parts
from hotshoe_server.state import ServerState
from hotshoe_ui.extension import PageOptions

INDEX = "index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def build(server: ServerState, options: PageOptions) -> Parts:
    """See `hotshoe_server.extensions.ServerExtension`."""
    wanted = server.config.loopback if options.ui is None else options.ui
    return Parts(endpoints=endpoints() if wanted else ())


def endpoints() -> list[Endpoint]:
    """Return a route for each file. The files are read once; no path comes from a request."""
    found = []
    for file in sorted(files("hotshoe_ui").joinpath("static").iterdir(), key=lambda f: f.name):
        kind = TYPES[file.name[file.name.rindex(".") :]]
        found.append(
            Endpoint(
                "GET",
                "/" if file.name == INDEX else f"/ui/{file.name}",
                _handler(file.read_bytes(), kind),
                "A file of the page for people",
                public=True,
                other_types=(kind,),
            )
        )
    return found


def _handler(body: bytes, kind: str) -> Callable[..., Awaitable[Any]]:
    async def handler(call: Call) -> Response:
        return Response(body, headers={**HEADERS, "content-type": kind})

    return handler
