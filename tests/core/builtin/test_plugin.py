"""Core's own plugin: everything that it names exists."""

import pytest

from hotshoe.builtin import plugin
from hotshoe.cli.parser import Parser
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import Platform


@pytest.mark.parametrize("name", plugin.hotshoe_commands())
def test_commands_can_be_made_and_declare_flags(name: str) -> None:
    entry = plugin.hotshoe_commands()[name]
    command = resolve_lazy(entry.target)()
    parser = Parser(name, entry.help)
    command.add_arguments(parser)
    assert "--help" in parser.format_help()
    assert "\n" not in entry.help
    assert callable(command.run)


@pytest.mark.parametrize("name", plugin.hotshoe_platforms())
def test_platforms_can_be_made(name: str) -> None:
    platform = resolve_lazy(plugin.hotshoe_platforms()[name])()
    assert isinstance(platform, Platform)
    assert platform.name == name
