"""Serves the page at `/` and its files below `/ui/`.

The files hold nothing secret and are the same for everybody, so they need no key; what they show
comes from endpoints that do. A strict policy keeps the page from loading or sending anything
anywhere else.
"""

from __future__ import annotations

from importlib.resources import files

from hotshoe_server.extensions import Parts, PublicFile
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
    return Parts(files=public_files() if wanted else ())


def public_files() -> list[PublicFile]:
    """Read the files once; no path comes from a request."""
    folder = files("hotshoe_ui").joinpath("static")
    return [
        PublicFile(
            "/" if file.name == INDEX else f"/ui/{file.name}",
            file.read_bytes(),
            {**HEADERS, "content-type": TYPES[file.name[file.name.rindex(".") :]]},
        )
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
    ]
