"""The table of metrics keeps the conventions of Prometheus."""

import re

import pytest

from hotshoe_observability.bounds import SECONDS, TOKENS
from hotshoe_observability.table import ERRORS, METRICS, OTHER, Metric
from hotshoe_server.errors import CATALOG


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"hotshoe_[a-z]+(_[a-z0-9]+)*", metric.name)
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_ms"))
    assert metric.help.endswith(".") or metric.help.endswith("1.")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert list(metric.vllm_buckets) == sorted(set(metric.vllm_buckets))
    assert bool(metric.vllm_buckets) == (metric.kind == "histogram")
    assert bool(metric.label) == (metric.values != ("",))
    assert bool(metric.vllm_label) <= bool(metric.vllm)
    if metric.vllm:
        assert metric.vllm.startswith(("vllm:", "http_"))
        assert bool(metric.vllm_label) == bool(metric.label)


def test_names_are_unique() -> None:
    for names in ([m.name for m in METRICS], [m.vllm for m in METRICS if m.vllm]):
        assert len(names) == len(set(names))


def test_what_queries_call_it() -> None:
    samples = {metric.sample for metric in METRICS}
    assert "hotshoe_steps_total" in samples
    assert "hotshoe_requests_running" in samples


def test_every_error_of_the_server_has_its_series() -> None:
    assert set(CATALOG) < set(ERRORS)
    assert {"client_gone", OTHER} < set(ERRORS)


def test_buckets_reach_far_enough() -> None:
    assert SECONDS[0] <= 0.001 and SECONDS[-1] >= 600
    assert TOKENS[-1] >= 131072
