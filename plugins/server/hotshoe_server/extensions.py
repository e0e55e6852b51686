"""The seam for what others add to the server: routes, middleware, observers, background work.

An extension is offered through hook `hotshoe_server_extensions` as `{"name": "module:EXTENSION"}`,
where EXTENSION is a `ServerExtension`. Its module is imported for every `hotshoe serve`, be it
only for `--help`: keep it light, and let `build` name the heavy part as `"module:function"`.

    @dataclass(frozen=True, slots=True)
    class PageOptions:
        ui: bool = option(True, "serve a page at /")

    def build(server: ServerState, options: PageOptions) -> Parts:
        return Parts(endpoints=[Endpoint("GET", "/", page, "A page for people")])

    EXTENSION = ServerExtension(build="my_package.page:build", options=PageOptions)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.errors import HotshoeError, PluginError
from hotshoe.foreign import cause_of, foreign
from hotshoe.patience import patience
from hotshoe.types import RequestTiming, SamplingParams

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hotshoe_server.errors import ApiError
    from hotshoe_server.state import ServerState

_log = logging.getLogger(__name__)
#: How long an extension's lifespan may take to be left.
LEAVE_S = 5.0


@dataclass(slots=True)
class RequestRecord:
    """What is known of one engine request. The server writes it, observers read it.

    Attributes:
        request_id: As the engine knows it.
        endpoint: The route's path, such as `/v1/chat/completions`: a closed set.
        model: Name of the model, as served.
        headers: The HTTP request's headers, lower-case names; for trace contexts.
        stream: Whether the answer is streamed.
        params: What was asked of the engine.
        arrival_s: When the HTTP request was read, in `time.monotonic()` seconds, as all times.
        num_prompt_tokens: After rendering.
        num_cached_tokens: Of these, found in the prefix cache.
        num_generated_tokens: So far, over all sequences.
        lengths: The same for each of several sequences, by its number.
        timing: The engine's times; the object grows while the request runs.
        finish_reasons: One of "stop", "length", "abort", "error" for each ended sequence.
        served: The model's first name, of which `model` may be another one, or an adapter's.
        error: A key of `hotshoe_server.errors.CATALOG` when the request failed or was cut off;
            "client_gone" when nobody waited for the end.
        end_s: When it ended; 0 while it runs.
    """

    request_id: str
    endpoint: str
    model: str
    headers: Mapping[str, str]
    stream: bool
    params: SamplingParams
    arrival_s: float
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    timing: RequestTiming = field(default_factory=RequestTiming)
    finish_reasons: list[str] = field(default_factory=list)
    served: str = ""
    error: str | None = None
    end_s: float = 0.0


#: Takes the method, the route's path and the status of an HTTP answer, and the seconds it took.
Answered = Callable[[str, str, int, float], None]


class RequestObserver(Protocol):
    """Hears of every engine request. Called on the event loop: be quick, and never raise."""

    def refuse(self, endpoint: str, error: str) -> None:
        """A request was turned away unread: the queue is full, the server ends, no engine runs.

        Args:
            endpoint: The route's path.
            error: A key of `hotshoe_server.errors.CATALOG`.
        """
        ...

    def begin(self, record: RequestRecord) -> None:
        """A request goes to the engine."""
        ...

    def advance(self, record: RequestRecord, num_tokens: int, now_s: float) -> None:
        """The engine gave `num_tokens` new tokens, counted in the record already."""
        ...

    def end(self, record: RequestRecord) -> None:
        """The request has ended, one way or another. Called exactly once."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route.

    Attributes:
        method: Such as "GET" or "POST".
        path: Such as "/metrics".
        handler: `async def handler(call: Call) -> Response`. With a `body` annotation of a
            pydantic model as second parameter, the body is read, bounded and validated first.
            Values that are no `Response` are written as JSON.
        summary: One line, for /openapi.json.
        admin: Only on the admin socket, or with an admin key.
        generates: It takes the time of the engine or of the tokenizer, so it is not served while
            the queue is full or the server ends; this is found, and said, before the body is read,
            so that turning many away takes little from those who are served.
        answer: Type of the JSON answer, for /openapi.json; msgspec describes it.
        other_types: Media types of other answers, such as "text/event-stream". Without any and
            without `answer`, it is JSON of no stated type.
        error_body: Returns the JSON body of an error; default: OpenAI's form.
        any_type: Clients of another API send its JSON without saying that it is JSON.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    summary: str
    admin: bool = False
    generates: bool = False
    answer: Any = None
    other_types: tuple[str, ...] = ()
    error_body: Callable[[ApiError], Any] | None = None
    any_type: bool = False


@dataclass(frozen=True, slots=True)
class PublicFile:
    """Bytes that everybody may have, key or not: no code runs for them and nothing is looked at.

    Attributes:
        path: Such as "/".
        body: The same for everybody, for as long as the server runs.
        headers: With the content type.
    """

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Parts:
    """What an extension adds to one server.

    Attributes:
        endpoints: Routes, all behind the guard.
        files: Outside the guard, as a browser can give no key before it has a page.
        middleware: Each wraps the application in an ASGI application; the first is outermost. They
            run behind the guard and see only requests that passed it.
        observers: Hear of every engine request.
        answered: Called when an endpoint's answer has ended, or a request to it is turned away.
        lifespan: Entered when the engine is ready; the server does not start if that fails, and
            one of several processes may take START_S of `hotshoe_server.supervisor` for all that it
            does then. Left when the server has drained; what goes wrong then is logged.
    """

    endpoints: Sequence[Endpoint] = ()
    files: Sequence[PublicFile] = ()
    middleware: Sequence[Callable[[ASGIApp], ASGIApp]] = ()
    observers: Sequence[RequestObserver] = ()
    answered: Sequence[Answered] = ()
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """What hook `hotshoe_server_extensions` names.

    Attributes:
        build: `build(server, options) -> Parts`, or `"module:function"` of it. Called once, when
            the engine is ready. `server.models`, `server.config` and `server.in_flight` are what
            a page or a metric needs; `server.client` is the first model's engine.
        options: A frozen dataclass of `hotshoe.config.option` fields, which become flags of
            `hotshoe serve` and names in its YAML file; None when there are none.
    """

    build: Callable[[ServerState, Any], Parts] | str
    options: type[Any] | None = None


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Name the extension whose code runs here, should it fail, or while it takes long.

    Raises:
        PluginError: It raised what nobody raises on purpose, or wanted to end the process.
    """

    def blame(error: BaseException) -> PluginError:
        cause = cause_of(error)
        return PluginError(f"server extension {name} is broken: {cause}; mend or uninstall it")

    with (
        foreign(blame, (HotshoeError, asyncio.CancelledError)),
        patience(f"server extension {name}"),
    ):
        yield


@asynccontextmanager
async def living(
    name: str, lifespan: Callable[[], AbstractAsyncContextManager[None]]
) -> AsyncIterator[None]:
    """Enter an extension's lifespan, and leave it whatever has happened.

    Raises:
        PluginError: It cannot be entered.
    """
    with blamed(name):
        context = lifespan()
        await context.__aenter__()
    try:
        yield
    finally:
        limit = asyncio.timeout(LEAVE_S)
        try:
            async with limit:
                await context.__aexit__(None, None, None)
        except BaseException as error:  # foreign code again, and the server ends anyway
            cause = f"it takes more than {LEAVE_S:g} s" if limit.expired() else cause_of(error)
            _log.error("server extension %s did not end in order: %s", name, cause)
