"""Logits processors that a configuration names, and what is wrong with some."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.engine.start.processors import (
    declared_arguments,
    find_processors,
    make_processors,
)
from hotshoe.errors import ConfigError, PluginError
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint
from hotshoe.types import Argument


class Good:
    arguments = {"good": Argument("integer", 0)}

    def __init__(self, surroundings: object) -> None:
        self.surroundings = surroundings

    def plan(self, requests: object) -> None: ...


class Rival(Good):
    pass


class Other(Good):
    arguments = {"other": Argument("boolean")}

    def __init__(self, surroundings: object) -> None:
        raise OSError("no file")


class Loose(Good):
    arguments = {"loose": 3}


class Pack:
    """A plugin with a processor."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_logits_processors(self) -> dict[str, object]:
        return {"good": Good, "none": "hotshoe_missing:No"}


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager([EntryPoint("pack", "dist", "1", Pack)])


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = ModuleType("some_processors")
    vars(found).update(Good=Good, Rival=Rival, Other=Other, Loose=Loose, number=3)
    monkeypatch.setitem(sys.modules, "some_processors", found)
    return found


def found(plugins: PluginManager, *names: str):
    return find_processors(EngineConfig(logits_processors=list(names)), plugins)


def test_names_of_plugins_and_of_classes_are_found(plugins: PluginManager) -> None:
    ours, other = found(plugins, "good", "some_processors:Other")
    assert ours.label == "logits processor good (dist)"
    assert other.label == "logits processor some_processors:Other (some_processors)"
    assert declared_arguments([ours, other]) == {**Good.arguments, **Other.arguments}
    [planner] = make_processors([ours], "/model", 9, torch.device("cpu"))
    assert planner.__self__._inner.surroundings.vocab_size == 9
    assert found(plugins) == []


@pytest.mark.parametrize(
    ("names", "kind", "why"),
    [
        (("good", "good"), ConfigError, "names one twice: good, good"),
        (("good", "some_processors:Rival"), ConfigError, "both take an argument 'good'"),
        (("gold",), PluginError, "unknown logits processor 'gold'; did you mean good"),
        (("none",), PluginError, r"plugin pack \(dist 1\) is defective: none: ModuleNotFound"),
        (("absent:Class",), PluginError, "absent:Class cannot be used: ModuleNotFoundError"),
        (("some_processors:No",), PluginError, "AttributeError"),
        (("some_processors:number",), PluginError, "is no class with a method plan"),
        (("some_processors:Loose",), PluginError, "does not map names to Argument objects"),
    ],
)
def test_what_cannot_be_used_is_named(
    plugins: PluginManager, names: tuple[str, ...], kind: type, why: str
) -> None:
    with pytest.raises(kind, match=why):
        found(plugins, *names)


def test_one_that_cannot_be_made_is_named(plugins: PluginManager, tmp_path: Path) -> None:
    [other] = found(plugins, "some_processors:Other")
    with pytest.raises(PluginError, match=r"some_processors:Other cannot be used: OSError: no fi"):
        make_processors([other], str(tmp_path), 9, torch.device("cpu"))
