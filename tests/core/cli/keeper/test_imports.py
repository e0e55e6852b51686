"""What commands need is imported."""

import sys
from types import SimpleNamespace

from hotshoe.cli.command import CommandEntry
from hotshoe.cli.keeper import imports
from hotshoe.plugins import PluginManager


def test_commands_bring_their_modules() -> None:
    imports.import_commands(PluginManager())
    assert {*imports.MODULES, "hotshoe_server.serving", "hotshoe.cli.generate"} <= {*sys.modules}


def test_a_command_whose_packages_are_not_there_hinders_no_other() -> None:
    lacking = CommandEntry("hotshoe.cli.chat:Chat", "", ("no_such_module", "hotshoe.cli.chat"))
    plugins = SimpleNamespace(mapping=lambda hook: {"chat": lacking})
    imports.import_commands(plugins)
