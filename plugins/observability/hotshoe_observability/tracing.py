"""OpenTelemetry traces: one span for each request, with what happened to it as events.

A span carries lengths, parameters and times by the conventions for generative AI, never text. It
continues the trace that the request's `traceparent` header names. Spans are handed over in the
background; when nobody takes them they are dropped, and requests do not wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hotshoe import __version__
from hotshoe.errors import ConfigError
from hotshoe_server.extensions import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

NS = 1e9
EXPORT_TIMEOUT_S = 5
SHUTDOWN_TIMEOUT_MS = 2000
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/responses": "chat"}
_PARAMETERS = {
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.choice.count": "n",
}


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return what sends spans to an OTLP endpoint.

    Raises:
        ConfigError: The libraries are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(
            "--otlp-endpoint needs OpenTelemetry: pip install hotshoe-observability[otlp]"
        ) from None
    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)


class Tracer:
    """Makes a span when a request ends. See `hotshoe_server.extensions.RequestObserver`.

    Args:
        exporter: Where spans go.
        model: Becomes an attribute of the process.
    """

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {"service.name": "hotshoe", "service.version": __version__, "hotshoe.model": model}
        )
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("hotshoe", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hand over, at the end, what is still waiting; a collector that is away is not waited for
        longer than some seconds.
        """
        try:
            yield
        finally:
            self._provider.force_flush(SHUTDOWN_TIMEOUT_MS)
            self._provider.shutdown()

    def refuse(self, endpoint: str, error: str) -> None:
        """Nothing: nothing was done."""

    def begin(self, record: RequestRecord) -> None:
        """Nothing yet: a span is made when all is known."""

    def advance(self, record: RequestRecord, num_tokens: int, now_s: float) -> None:
        """Nothing: tokens are too many for events."""

    def end(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        # From monotonic time to that of the system's clock, which may have been set meanwhile.
        offset_ns = time.time_ns() - time.monotonic_ns()

        def ns(monotonic_s: float) -> int:
            return int(monotonic_s * NS) + offset_ns

        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(dict(record.headers)),
            kind=SpanKind.SERVER,
            start_time=ns(record.arrival_s),
            attributes=attributes(record),
        )
        timing = record.timing
        for name, moment_s in (
            ("scheduled", timing.scheduled_s),
            ("first token", timing.first_token_s),
            ("last token", timing.last_token_s),
        ):
            if moment_s:
                span.add_event(name, timestamp=ns(moment_s))
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(ns(record.end_s))


def attributes(record: RequestRecord) -> dict[str, Any]:
    """Describe a request by the semantic conventions for generative AI."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.endpoint, "text_completion"),
        "gen_ai.provider.name": "hotshoe",
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "gen_ai.response.finish_reasons": tuple(record.finish_reasons),
        "http.route": record.endpoint,
        "hotshoe.stream": record.stream,
    }
    for name, parameter in _PARAMETERS.items():
        value = getattr(record.params, parameter)
        if value is not None:
            found[name] = value
    if record.timing.first_token_s:
        found["gen_ai.server.time_to_first_token"] = record.timing.first_token_s - record.arrival_s
    if record.error is not None:
        found["error.type"] = record.error
    return found
