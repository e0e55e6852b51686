"""Discovery: every way in which a plugin can be wrong is recorded, and none is taken for absent."""

import pytest

from hotshoe.errors import PluginError
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint, installed_entry_points


class Plugin:
    """A plugin that names models and offers candidates."""

    HOTSHOE_HOOK_API = HOOK_API

    def __init__(self, **models: str) -> None:
        self.models = models

    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        return self.models

    @hookimpl
    def hotshoe_candidates(self, platform: str) -> list[str]:
        return [f"{name} on {platform}" for name in self.models]


class Misspelt(Plugin):
    @hookimpl
    def hotshoe_named_model(self) -> dict[str, str]:
        return {}


class Old(Plugin):
    HOTSHOE_HOOK_API = HOOK_API - 1


class TooOld(Plugin):
    HOTSHOE_HOOK_API = HOOK_API - 2


class TooNew(Plugin):
    HOTSHOE_HOOK_API = HOOK_API + 1


class Raising(Plugin):
    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        raise RuntimeError("out of names")


class Stranger:
    """Says nothing of the hook API."""


def missing() -> object:
    raise ImportError("no such library")


def manager(disabled: tuple[str, ...] = (), **plugins: object) -> PluginManager:
    def loader(plugin: object):
        return plugin if plugin is missing else lambda: plugin

    points = [EntryPoint(n, f"dist-{n}", "1", loader(p)) for n, p in plugins.items()]
    return PluginManager(points, disabled)


def errors(**plugins: object) -> dict[str, str | None]:
    return {record.name: record.error for record in manager(**plugins).records}


def test_names_are_merged() -> None:
    found = manager(b=Plugin(two="2"), a=Plugin(one="1"))
    assert found.mapping("hotshoe_named_models") == {"one": "1", "two": "2"}
    assert [r.name for r in found.records] == ["a", "b"]
    assert found.records[0].hooks == ("hotshoe_candidates", "hotshoe_named_models")
    assert found.owner("hotshoe_named_models", "two") == "dist-b"


def test_sequences_follow_plugin_names_and_get_arguments() -> None:
    found = manager(b=Plugin(two="2"), a=Plugin(one="1"))
    assert found.sequence("hotshoe_candidates", platform="p") == ["one on p", "two on p"]


def test_the_same_name_twice_is_an_error_that_names_both() -> None:
    found = manager(a=Plugin(one="1"), b=Plugin(one="2"))
    with pytest.raises(PluginError, match=r"'a' and 'b' both offer 'one'.*--disable-plugins"):
        found.mapping("hotshoe_named_models")


def test_a_plugin_that_cannot_be_imported_is_broken_not_absent() -> None:
    found = manager(good=Plugin(one="1"), bad=missing)
    assert {r.name: r.error for r in found.records} == {
        "bad": "ImportError: no such library",
        "good": None,
    }
    assert found.mapping("hotshoe_named_models") == {"one": "1"}


def test_other_hook_versions_are_refused_with_both_versions() -> None:
    found = errors(
        too_old=TooOld(), too_new=TooNew(), stranger=Stranger(), old=Old(), same=Plugin()
    )
    assert found["old"] is None
    assert found["same"] is None
    for name, version in (("too_old", HOOK_API - 2), ("too_new", HOOK_API + 1), ("stranger", None)):
        assert f"built for hook API {version}" in found[name]
        assert f"serves {HOOK_API - 1} and {HOOK_API}" in found[name]


def test_a_misspelt_hook_is_refused() -> None:
    error = errors(a=Misspelt())["a"]
    assert "unknown hook hotshoe_named_model; did you mean hotshoe_named_models?" in error


def test_two_plugins_of_one_name() -> None:
    points = [EntryPoint("a", f"dist-{i}", "1", lambda: Plugin(one="1")) for i in (1, 2)]
    first, second = PluginManager(points).records
    assert first.error is None
    assert "already named 'a'" in second.error


def test_a_hook_that_raises_is_an_error_that_names_the_plugin() -> None:
    with pytest.raises(PluginError, match="'a' failed in hotshoe_named_models: RuntimeError: out"):
        manager(a=Raising()).mapping("hotshoe_named_models")


def test_disabled_plugins_are_not_even_loaded() -> None:
    found = manager(disabled=("bad",), bad=missing, good=Plugin(one="1"))
    assert [(r.name, r.disabled, r.error) for r in found.records] == [
        ("bad", True, None),
        ("good", False, None),
    ]
    with pytest.raises(PluginError, match=r"no plugin 'goood' to disable; did you mean good\?"):
        manager(disabled=("goood",), good=Plugin())


def test_pick() -> None:
    hook = "hotshoe_named_models"
    found = manager(a=Plugin(one="1"))
    assert found.pick("model", "one", hook) == "1"
    with pytest.raises(
        PluginError, match=r"unknown model 'onne'; did you mean one\?.*choices: one"
    ):
        found.pick("model", "onne", hook)
    with pytest.raises(PluginError, match="choices: none installed"):
        manager(a=Plugin()).pick("model", "one", hook)


def test_what_is_missing_may_be_in_a_broken_plugin() -> None:
    found = manager(a=Plugin(one="1"), bad=missing)
    with pytest.raises(PluginError, match=r"plugin bad is broken: ImportError: no such library"):
        found.pick("model", "two", "hotshoe_named_models")


def test_core_is_installed_like_any_other() -> None:
    [core] = [point for point in installed_entry_points() if point.name == "core"]
    assert core.distribution == "hotshoe"
    assert core.load().HOTSHOE_HOOK_API == HOOK_API
