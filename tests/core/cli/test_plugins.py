"""`hotshoe plugins`: plugins, their state, and the names they offer."""

import json

import pytest

from hotshoe.cli import plugins as module
from hotshoe.plugins import hookspecs, manager
from hotshoe.plugins.hookspecs import HOOK_API, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots import Candidate


class Good:
    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        return {"tiny": "/models/tiny"}


class Pack:
    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_candidates(self, platform: str) -> list[Candidate]:
        found = [Candidate("rms_norm", name, "no:judge", "no:build") for name in ("fast", "small")]
        return found if platform == "null" else []


def broken() -> object:
    raise ImportError("no such library")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = manager.own_entry_points()
    points = [
        EntryPoint("good", "hotshoe-good", "1.0", Good),
        EntryPoint("bad", "hotshoe-bad", "2.0", broken),
        EntryPoint("pack", "some-pack", "3.0", Pack),
    ]
    monkeypatch.setattr(manager, "installed_entry_points", lambda: [*own, *points])


@pytest.mark.usefixtures("installed")
def test_table(hotshoe) -> None:
    lines = hotshoe("plugins").out.splitlines()
    assert any(line.split() == ["good", "hotshoe-good", "1.0", "named_models"] for line in lines)
    assert any("ImportError: no such library" in line for line in lines if "hotshoe-bad" in line)
    assert any(line.split() == ["models", "tiny"] for line in lines)
    assert any("some-pack 3.0  null" in line and "rms_norm/small" in line for line in lines)


@pytest.mark.usefixtures("installed")
def test_json(hotshoe) -> None:
    document = json.loads(hotshoe("plugins", "--json").out)
    assert {plugin["plugin"]: plugin["error"] for plugin in document["plugins"]} == {
        "bad": "ImportError: no such library",
        "core": None,
        "good": None,
        "pack": None,
    }
    assert document["offers"]["models"] == ["tiny"]
    candidates = ["rms_norm/fast", "rms_norm/small"]
    own = {"plugin": "pack", "package": "some-pack 3.0", "platform": "null"}
    assert document["packs"] == [{**own, "candidates": candidates}]


def test_many_names_take_several_lines(monkeypatch: pytest.MonkeyPatch, hotshoe) -> None:
    names = [f"model-{number:03}" for number in range(200)]

    class Many(Good):
        @hookimpl
        def hotshoe_named_models(self) -> dict[str, str]:
            return dict.fromkeys(names, "/models/one")

    points = [*manager.own_entry_points(), EntryPoint("many", "hotshoe-many", "1.0", Many)]
    monkeypatch.setattr(manager, "installed_entry_points", lambda: points)
    out = hotshoe("plugins").out
    assert max(map(len, out.splitlines())) < 140
    assert all(name in out for name in names)


def test_the_real_installation_lists_core(hotshoe) -> None:
    document = json.loads(hotshoe("plugins", "--json").out)
    assert "core" in [plugin["plugin"] for plugin in document["plugins"] if not plugin["error"]]
    assert "generate" in document["offers"]["commands"]


def test_every_hook_that_offers_names_is_asked() -> None:
    hooks = {name for name in vars(hookspecs) if name.startswith("hotshoe_")}
    assert set(module.OFFERS.values()) == hooks - {"hotshoe_candidates"}
