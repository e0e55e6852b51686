"""What commands need is imported."""

import sys

from hotshoe.cli.keeper import imports
from hotshoe.plugins import PluginManager


def test_commands_bring_their_modules() -> None:
    imports.import_commands(PluginManager())
    assert {*imports.MODULES, "hotshoe_server.serving", "hotshoe.cli.generate"} <= {*sys.modules}
