"""Flags of the plugin."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe_observability.options import ObservabilityOptions


def test_defaults_trace_nothing() -> None:
    options = ObservabilityOptions()
    assert options.metrics and options.otlp_endpoint is None and options.profile_dir is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics_names": "prometheus"}, "metrics_names must be one of hotshoe, vllm"),
        ({"otlp_endpoint": "localhost:4317"}, "must look like http://"),
        ({"otlp_endpoint": "http://"}, "must look like http://"),
    ],
)
def test_mistakes(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ObservabilityOptions(**values)
