"""The bridge, found beside the tests where it is not installed, and operations to bridge."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import Candidate

PLACE = str(Path(__file__).resolve().parents[2] / "bridge")
if PLACE not in sys.path:
    sys.path.append(PLACE)  # behind what is installed

from hotshoe_bridge.operations import Operations  # noqa: E402


def stand_in(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, object]]) -> None:
    """Offer modules of a host that is not installed, by name, and the packages that hold them."""
    for name in list(modules):
        for parent in (name[:at] for at, letter in enumerate(name) if letter == "."):
            modules.setdefault(parent, {})
    for name, members in sorted(modules.items()):
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


class Mine(Platform):
    """References, and what a test offers."""

    name = "mine"
    offers: Sequence[Candidate] = ()

    def probe(self) -> Available:
        return Available(score=1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts("mine", "cpu", "a device", "any", 1 << 30, 1)

    def candidates(self) -> Sequence[Candidate]:
        return self.offers


@pytest.fixture
def operations_of():
    """Return operations of a platform that offers some candidates."""

    def make(*candidates: Candidate, **forced: str) -> Operations:
        class Offering(Mine):
            offers = candidates

        class Plugin:
            HOTSHOE_HOOK_API = HOOK_API

            @hookimpl
            def hotshoe_platforms(self):
                return {"mine": Offering}

        plugins = PluginManager([EntryPoint("mine", "tests", "0", Plugin)])
        return Operations("mine", forced, plugins)

    return make


@pytest.fixture
def operations(operations_of) -> Operations:
    """References alone."""
    return operations_of()
