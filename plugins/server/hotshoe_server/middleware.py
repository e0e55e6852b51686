"""Middleware that the operator names: `--middleware MODULE:NAME`, code that this server then runs.

Only the operator can name some, on the command line or in the configuration file, never a request
or a checkpoint. It sees what passed the guard, as the middleware of an extension does, and can read
and change every request and answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.foreign import cause_of, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe_server.extensions import Parts


def operators_parts(names: Sequence[str]) -> dict[str, Parts]:
    """Import middleware and return it as parts of the server, the first outermost.

    Args:
        names: Each `module:name` of an ASGI middleware class, of a function that wraps an ASGI
            application, or of `async def f(request, call_next)` as Starlette takes it.

    Raises:
        ConfigError: A module or name cannot be imported, or is none of these.
    """
    return {f"--middleware {name}": Parts(middleware=[_wrapping(name)]) for name in names}


def _wrapping(name: str) -> Any:
    def blame(error: BaseException) -> ConfigError:
        remedy = "write MODULE:NAME, and put its folder on PYTHONPATH"
        return ConfigError(f"--middleware {name} is not usable: {cause_of(error)}; {remedy}")

    with foreign(blame):
        found: Any = resolve_lazy(name)
    if inspect.iscoroutinefunction(found):
        from starlette.middleware.base import BaseHTTPMiddleware

        return partial(BaseHTTPMiddleware, dispatch=found)
    if not callable(found):
        raise ConfigError(f"--middleware {name} is {found!r}, which wraps no application")
    return found
