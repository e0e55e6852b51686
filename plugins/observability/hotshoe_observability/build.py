"""Puts the plugin's parts together for one server. Called once, when the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager

from starlette.responses import Response

from hotshoe.engine.client import EngineStats
from hotshoe.errors import EngineError
from hotshoe_observability.counts import Counts
from hotshoe_observability.exposition import HOTSHOE, VLLM, Snapshot, expose
from hotshoe_observability.logs import RequestLog
from hotshoe_observability.options import ObservabilityOptions
from hotshoe_observability.profiling import ProfileVerbs
from hotshoe_observability.recorder import Recorder
from hotshoe_observability.tracing import Tracer, otlp_exporter
from hotshoe_server.call import Call
from hotshoe_server.extensions import Answered, Endpoint, Parts, RequestObserver
from hotshoe_server.state import ServerState

#: An engine that takes longer to count is reported as down.
STATS_TIMEOUT_S = 2.0


def build(server: ServerState, options: ObservabilityOptions) -> Parts:
    """See `hotshoe_server.extensions.ServerExtension`.

    Raises:
        ConfigError: Traces are asked for, and the library is not installed.
    """
    observers: list[RequestObserver] = []
    endpoints = ProfileVerbs(options.profile_dir).endpoints()
    answered: list[Answered] = []
    resources: list[AbstractContextManager[None]] = []
    if options.metrics:
        metrics = Metrics(server, options)
        observers.append(metrics.recorder)
        answered.append(metrics.recorder.answered)
        summary, kinds = "Metrics for Prometheus", ("text/plain", "application/openmetrics-text")
        endpoints.append(Endpoint("GET", "/metrics", metrics.answer, summary, other_types=kinds))
    if options.otlp_endpoint is not None:
        tracer = Tracer(otlp_exporter(options.otlp_endpoint), server.default.name)
        observers.append(tracer)
        resources.append(tracer.running())
    if server.config.log_format == "json":
        observers.append(RequestLog())
    return Parts(
        endpoints=endpoints,
        observers=observers,
        answered=answered,
        lifespan=_lifespan(resources),
    )


class Metrics:
    """The endpoint of metrics and what feeds it."""

    def __init__(self, server: ServerState, options: ObservabilityOptions) -> None:
        self._server = server
        self._names = (HOTSHOE, VLLM) if options.metrics_names == "vllm" else (HOTSHOE,)
        shared, num_processes = server.shared, server.config.api_processes
        self._counts = (
            Counts()
            if shared is None
            else Counts.shared(shared.file, shared.process, num_processes)
        )
        self.recorder = Recorder(self._counts)

    async def answer(self, call: Call) -> Response:
        """Answer with all metrics, also while the engine is down."""
        client = self._server.client
        snapshot = Snapshot(
            self._server.default.name,
            client.info,
            await self._stats(),
            client.num_restarts,
            self._counts,
        )
        text, content_type = expose(snapshot, self._names, call.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def _stats(self) -> EngineStats | None:
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                stats: EngineStats = await self._server.client.stats()
                return stats
        except (EngineError, TimeoutError):
            return None


def _lifespan(
    resources: list[AbstractContextManager[None]],
) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        with contextlib.ExitStack() as stack:
            for resource in resources:
                stack.enter_context(resource)
            yield

    return lifespan
