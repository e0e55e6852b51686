"""The extension within a running server: metrics, traces and log lines of real requests."""

import http.server
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from tests.plugins.observability.test_dashboard import QUERIES, check, exposed
from tests.plugins.served import Served, serve

from hotshoe_observability import table

COMPLETIONS = "/v1/completions"


class Collector(http.server.ThreadingHTTPServer):
    """Takes spans."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    def spans(self) -> list:
        found = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [s for e in found for r in e.resource_spans for c in r.scope_spans for s in c.spans]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve("demo", "--platform", "null", "--metrics-names", "vllm") as found:
        yield found


def post(served: Served, path: str, **body: object) -> dict:
    request = urllib.request.Request(
        served.url + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def values(served: Served) -> dict[tuple, float]:
    families = text_string_to_metric_families(served.get("/metrics"))
    return {(s.name, *sorted(s.labels.values())): s.value for f in families for s in f.samples}


def settled(served: Served, name: str) -> dict[tuple, float]:
    """Return the values once a request's end has been counted."""
    before, end = values(served), time.monotonic() + 60
    while values(served)[name, "demo"] == before[name, "demo"] == 0 and time.monotonic() < end:
        time.sleep(0.02)
    return values(served)


def test_requests_are_counted(served: Served) -> None:
    before = values(served)
    post(served, COMPLETIONS, prompt=[1, 2, 3, 4], max_tokens=5, n=2, ignore_eos=True)
    found = settled(served, "hotshoe_request_seconds_count")
    grown = {key: found[key] - before[key] for key in before}
    assert grown["hotshoe_requests_total", COMPLETIONS, "demo"] == 1
    assert grown["hotshoe_sequences_finished_total", "demo", "length"] == 2
    assert grown["hotshoe_generated_tokens_total", "demo"] == 10
    assert grown["hotshoe_request_prompt_tokens_sum", "demo"] == 4
    assert grown["hotshoe_request_generated_tokens_sum", "demo"] == 10
    assert grown["hotshoe_request_sequences_sum", "demo"] == 2
    for name in ("time_to_first_token_seconds", "request_seconds", "queue_seconds"):
        assert grown[f"hotshoe_{name}_count", "demo"] == 1
        assert 0 < grown[f"hotshoe_{name}_sum", "demo"] < 10
    # Every token after the first of its sequence counts, also those that come at once.
    assert 4 <= grown["hotshoe_inter_token_latency_seconds_count", "demo"] <= 8
    assert found["hotshoe_engine_up", "demo"] == 1
    assert found["vllm:num_requests_running", "0", "demo"] == 0


def test_refused_requests_never_began(served: Served) -> None:
    before = values(served)
    with pytest.raises(urllib.error.HTTPError):
        post(served, COMPLETIONS, prompt=[1], max_tokens=-1)
    found = values(served)
    assert (
        found["hotshoe_requests_total", COMPLETIONS, "demo"]
        == (before["hotshoe_requests_total", COMPLETIONS, "demo"])
    )


def test_the_table_is_what_a_server_exposes(served: Served) -> None:
    families = {f.name: f for f in text_string_to_metric_families(served.get("/metrics"))}
    for metric in table.METRICS:
        assert families[metric.name].type == metric.kind
    assert {name for name in families if name.startswith("hotshoe_")} == {
        metric.name for metric in table.METRICS
    }


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_for_what_a_server_exposes(served: Served, query: str) -> None:
    check(query, exposed(served.get("/metrics")))


def test_open_metrics_where_asked_for(served: Served) -> None:
    text = served.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0"])
def test_its_kinds_of_answers_are_described(served: Served, accept: str) -> None:
    described = json.loads(served.get("/openapi.json"))["paths"]["/metrics"]["get"]["responses"]
    request = urllib.request.Request(served.url + "/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.headers.get_content_type() in described["200"]["content"]
    assert "application/json" not in described["200"]["content"]


def test_traces_and_logs() -> None:
    with Collector() as collector:
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        words = ("--otlp-endpoint", endpoint, "--log-format", "json")
        with serve("demo", "--platform", "null", *words) as served:
            post(served, COMPLETIONS, prompt=[1, 2, 3], max_tokens=4, ignore_eos=True)
            log = served.log
            end = time.monotonic() + 60
            while "request ended" not in log.read_text() and time.monotonic() < end:
                time.sleep(0.02)
            lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        collector.shutdown()
        [span] = collector.spans()
    assert span.trace_id.hex() == "a" * 32
    assert span.parent_span_id.hex() == "b" * 16
    found = {a.key: a.value for a in span.attributes}
    assert found["gen_ai.usage.output_tokens"].int_value == 4
    [entry] = [e for e in map(json.loads, lines) if e["message"] == "request ended"]
    assert (entry["prompt_tokens"], entry["generated_tokens"]) == (3, 4)
    assert entry["ttft_ms"] > 0


def test_processes_count_together() -> None:
    with serve("demo", "--platform", "null", "--api-processes", "3") as served:
        for _ in range(30):
            post(served, COMPLETIONS, prompt=[1, 2], max_tokens=2, ignore_eos=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:  # a request's end is counted after its answer
            if values(served)["hotshoe_request_seconds_count", "demo"] == 30:
                break
        # Whichever process answers, it speaks for all of them.
        for _ in range(10):
            found = values(served)
            assert found["hotshoe_requests_total", COMPLETIONS, "demo"] == 30
            assert found["hotshoe_time_to_first_token_seconds_count", "demo"] == 30
            assert found["hotshoe_api_processes", "demo"] == 3


def test_without_metrics() -> None:
    with serve("demo", "--platform", "null", "--no-metrics", "--no-ui") as served:
        for path in ("/metrics", "/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                served.get(path)
