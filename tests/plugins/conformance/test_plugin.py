"""The plugin offers the kit's commands without importing the kit."""

import subprocess
import sys

from hotshoe.lazy import resolve_lazy
from hotshoe_conformance.plugin import hotshoe_commands


def test_commands() -> None:
    assert set(hotshoe_commands()) == {"conformance", "new-platform"}
    for entry in hotshoe_commands().values():
        assert hasattr(resolve_lazy(entry.target)(), "run")


def test_listing_is_light() -> None:
    code = "import sys, hotshoe_conformance.plugin, hotshoe_conformance.pytest_plugin as p; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
