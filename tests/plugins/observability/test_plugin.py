"""The plugin names its extension, which imports neither metrics nor tracing libraries."""

import subprocess
import sys

CODE = """
import sys
from hotshoe.lazy import resolve_lazy
from hotshoe_observability.plugin import hotshoe_server_extensions
[target] = hotshoe_server_extensions().values()
assert resolve_lazy(target).build == "hotshoe_observability.build:build"
assert not {"starlette", "prometheus_client", "opentelemetry", "torch"} & set(sys.modules)
"""


def test_light() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
