"""The example of a slot from outside: chosen, explained, and judged by the kit as core's are."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotshoe.errors import PluginError
from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import Candidate, Selector, accept, all_slots
from hotshoe_conformance.kit import Kit, Options
from hotshoe_conformance.report import NATIVE, WRONG

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/slot-squared-relu"
SLOT = "squared_relu"
FACTS = DeviceFacts("mine", "cpu", "a device", "any", 1 << 30, 1)


class Mine(Platform):
    name = "mine"
    build = staticmethod(lambda spec, facts: lambda x: x.clamp(min=0) * x.clamp(min=0))

    def probe(self):
        return Available(score=1)

    def facts(self):
        return FACTS

    def candidates(self):
        return [Candidate(SLOT, "quick", lambda spec, facts: accept(5), self.build)]


class Plugin:
    HOTSHOE_HOOK_API = HOOK_API

    @staticmethod
    @hookimpl
    def hotshoe_platforms():
        return {"mine": Mine}


@pytest.fixture
def plugins(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    example = importlib.import_module("hotshoe_squared_relu.plugin")
    return PluginManager(
        [
            EntryPoint(SLOT, "hotshoe-slot-squared-relu", "0.1.0", lambda: example),
            EntryPoint("mine", "mine", "1", lambda: Plugin),
        ]
    )


def verdict(plugins) -> str:
    report = Kit("mine", Options(quick=True, seed=5, slot=SLOT), plugins).run()
    [slot] = report.slots
    assert slot.slot == SLOT
    return slot.verdict


def test_it_is_chosen_like_any_other(plugins) -> None:
    slots = all_slots(plugins)
    spec = slots[SLOT].spec_type(4, "float32")
    x = torch.tensor([[-1.0, 0.0, 2.0, 3.0]])
    for candidates, chosen in ((Mine().candidates(), "quick"), ((), "reference")):
        selector = Selector(slots, candidates, FACTS)
        assert selector.choose(SLOT, spec)(x).tolist() == [[0.0, 0.0, 4.0, 9.0]]
        assert selector.decide(SLOT, spec).chosen == chosen
    assert slots[SLOT].step_bytes(spec, 100) == 2 * 4 * 4


def test_the_kit_proves_candidates(plugins) -> None:
    assert verdict(plugins) == NATIVE


def test_the_kit_finds_what_is_wrong(plugins, monkeypatch) -> None:
    monkeypatch.setattr(Mine, "build", staticmethod(lambda spec, facts: lambda x: x * x))
    assert verdict(plugins) == WRONG


def test_a_slot_without_a_suite_is_named(plugins, monkeypatch) -> None:
    module = importlib.import_module("hotshoe_squared_relu.slot")
    monkeypatch.setattr(module, "SLOT", replace(module.SLOT, suite=None))
    with pytest.raises(PluginError, match="slot squared_relu names None as its conformance suite"):
        verdict(plugins)


def test_the_package_installs_and_is_listed(shared) -> None:
    shared.ok("pip", "install", str(EXAMPLE))
    document = json.loads(shared.ok("hotshoe", "plugins", "--json"))
    assert document["offers"]["slots"] == [SLOT]
    assert "conforms" in shared.ok(
        "hotshoe", "conformance", "--platform", "cpu", "--slot", SLOT, "--quick"
    )
