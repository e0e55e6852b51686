"""Flags of the plugin."""

from pathlib import Path

import pytest

from hotshoe.errors import ConfigError
from hotshoe_observability.options import ObservabilityOptions


def test_defaults_trace_nothing(tmp_path: Path) -> None:
    options = ObservabilityOptions()
    assert ObservabilityOptions(profile_dir=f"{tmp_path}/new/traces").profile_dir is not None
    assert options.metrics and options.otlp_endpoint is None and options.profile_dir is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics_names": "prometheus"}, "metrics_names must be one of hotshoe, vllm"),
        ({"otlp_endpoint": "localhost:4317"}, "must look like http://"),
        ({"otlp_endpoint": "http://"}, "must look like http://"),
        ({"profile_dir": f"{__file__}/traces"}, r"cannot be used: .*test_options.py is no folder"),
        ({"profile_dir": "/proc/self/traces"}, "cannot be used: /proc/self may not be written"),
    ],
)
def test_mistakes(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ObservabilityOptions(**values)
