"""The plugin names its extension, which imports no web library."""

import subprocess
import sys

CODE = """
import sys
from hotshoe.lazy import resolve_lazy
from hotshoe_ui.plugin import hotshoe_server_extensions
[target] = hotshoe_server_extensions().values()
assert resolve_lazy(target).build == "hotshoe_ui.page:build"
assert not {"starlette", "fastapi", "torch"} & set(sys.modules)
"""


def test_light() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
