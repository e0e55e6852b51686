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
from hotshoe_server.state import Served, ServerState

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
        self._by_model: dict[str, Counts] = {}
        self.recorder = Recorder(self._counts, self._counts_of)

    def _counts_of(self, name: str) -> Counts:
        """Return the counts of a model; those of several processes are of one model."""
        if self._server.shared is not None:
            return self._counts
        found = self._by_model.get(name)
        if found is None:
            found = self._by_model[name] = Counts()
        return found

    async def answer(self, call: Call) -> Response:
        """Answer with all metrics, also while engines are down."""
        models = dict(self._server.models)
        for name in self._by_model.keys() - models.keys():
            del self._by_model[name]  # it has been unloaded
        stats = await asyncio.gather(*(_stats(served) for served in models.values()))
        snapshots = [
            Snapshot(
                name,
                served.client.info,
                found,
                served.client.num_restarts,
                self._counts_of(name),
            )
            for (name, served), found in zip(models.items(), stats, strict=True)
        ]
        accept = call.headers.get("accept", "")
        text, content_type = expose(snapshots, self._names, accept, self._counts)
        return Response(text, headers={"content-type": content_type})


async def _stats(served: Served) -> EngineStats | None:
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            stats: EngineStats = await served.client.stats()
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
