"""The application: endpoints as routes, the guard around them, extensions in between.

`create_app` needs an engine that is ready; what answers before that is `hotshoe_server.serving`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hotshoe_server.admission import Admission
from hotshoe_server.endpoints import ENDPOINTS, OPTIONAL
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint, Parts, PublicFile, blamed
from hotshoe_server.guard import Guard
from hotshoe_server.named_adapters import NamedAdapters
from hotshoe_server.openapi import openapi_endpoint
from hotshoe_server.route import EndpointApp, error_response
from hotshoe_server.state import ServerState


def create_app(
    server: ServerState,
    extensions: Mapping[str, Parts] | None = None,
    adapters: NamedAdapters | None = None,
) -> ASGIApp:
    """Return the ASGI application of a server whose engine is ready.

    Args:
        server: What endpoints share; observers of the extensions are added to it.
        extensions: What others add, by name, built for this server. Their lifespans are the
            caller's.
        adapters: Finds adapters that requests name, if anything does.

    `server.turn_away` is set where requests may be refused without the application.

    Raises:
        PluginError: What an extension adds cannot be used.
    """
    added = extensions or {}
    endpoints: list[Endpoint] = [*ENDPOINTS]
    for name, own in OPTIONAL.items():
        endpoints += own if getattr(server.config, name) else ()
    if adapters is not None:
        endpoints = [adapters.wrap(endpoint) for endpoint in endpoints]
    files: list[PublicFile] = []
    routes = _routes(server, endpoints, ())
    for name, parts in added.items():
        with blamed(name):
            routes += _routes(server, parts.endpoints, parts.files)
            endpoints += parts.endpoints
            files += parts.files
            server.observers.extend(parts.observers)
            server.answered.extend(parts.answered)
    endpoints.append(openapi_endpoint(endpoints))  # which describes itself, too
    routes += _routes(server, endpoints[-1:], ())
    app: ASGIApp = Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})
    for name, parts in reversed(added.items()):
        with blamed(name):
            for middleware in reversed(parts.middleware):
                app = middleware(app)
    app = guard = Guard(app, server.config, {file.path for file in files})
    hears_all = server.config.access_log or any(parts.middleware for parts in added.values())
    if not hears_all:
        plain = [e.path for e in endpoints if e.generates and e.error_body is None]
        server.turn_away = Admission(server, guard, plain)
    if server.config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=server.config.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients bring their own, such as x-stainless-lang
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


def _routes(
    server: ServerState, endpoints: Sequence[Endpoint], files: Sequence[PublicFile]
) -> list[Route]:
    return [
        *(Route(e.path, EndpointApp(server, e), methods=[e.method]) for e in endpoints),
        *(Route(f.path, Response(f.body, headers=f.headers), methods=["GET"]) for f in files),
    ]


def _unrouted(request: Request, error: Exception) -> Response:
    """Answer what no endpoint takes."""
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    response = error_response(ApiError(code))
    response.headers.update(error.headers or {})
    return response
