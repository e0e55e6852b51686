"""Spans of requests, caught by an exporter in memory and by a collector over HTTP."""

import http.server
import sys
import threading
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from hotshoe.errors import ConfigError
from hotshoe_observability.tracing import Tracer, attributes, otlp_exporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans(*records) -> list:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "demo")
    with tracer.running():
        for record in records:
            tracer.begin(record)
            tracer.advance(record, 1, 103.0)
            tracer.end(record)
    return list(exporter.get_finished_spans())


def test_a_span_has_the_requests_times(make_record) -> None:
    [span] = spans(make_record())
    assert span.kind is SpanKind.SERVER
    assert span.end_time - span.start_time == pytest.approx(8e9, abs=1e4)
    moments = {e.name: (e.timestamp - span.start_time) / 1e9 for e in span.events}
    assert moments == pytest.approx({"scheduled": 1.0, "first token": 3.0, "last token": 7.0})
    assert span.attributes["gen_ai.usage.output_tokens"] == 5
    assert span.attributes["gen_ai.request.temperature"] == 0.5
    assert span.status.status_code is StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "hotshoe"
    assert span.parent is None


def test_spans_follow_the_systems_clock_when_it_is_set(make_record, monkeypatch) -> None:
    [before] = spans(make_record())
    hour_ns = 3_600_000_000_000
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "demo")
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - hour_ns)
    with tracer.running():
        tracer.end(make_record())
    [after] = exporter.get_finished_spans()
    assert after.end_time - after.start_time == pytest.approx(8e9, abs=1e4)
    assert after.start_time - before.start_time < -hour_ns / 2


def test_the_callers_trace_goes_on(make_record) -> None:
    [span] = spans(make_record(headers={"traceparent": PARENT}))
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("header", ["", "nonsense", "00-00-00-00", "\x00"])
def test_a_bad_parent_is_none(make_record, header: str) -> None:
    [span] = spans(make_record(headers={"traceparent": header}))
    assert span.parent is None


def test_failures_are_errors(make_record) -> None:
    [span] = spans(make_record(error="engine_dead"))
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "engine_dead"


def test_no_text_in_attributes(make_record) -> None:
    found = attributes(make_record())
    assert not any("prompt" in name or "message" in name for name in found)


def test_spans_reach_a_collector(make_record) -> None:
    bodies = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        tracer = Tracer(otlp_exporter(f"http://127.0.0.1:{server.server_port}/v1/traces"), "demo")
        with tracer.running():
            tracer.end(make_record())
        server.shutdown()
        thread.join()
    [span] = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans[0].scope_spans[0].spans
    assert span.name == "llm_request"


def test_without_the_library(monkeypatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install hotshoe-observability\[otlp\]"):
        otlp_exporter("http://x")
