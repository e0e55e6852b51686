"""Discovery: every way in which a plugin can be wrong is recorded, and none is taken for absent."""

import functools
import importlib
from pathlib import Path

import pytest

from hotshoe.errors import ConfigError, PluginError
from hotshoe.plugins import PluginManager, hookimpl, hookspecs
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import (
    USUAL,
    EntryPoint,
    blaming_plugin,
    installed_entry_points,
)


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


class Span(Plugin):
    """Built for several versions."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(one="1")
        self.HOTSHOE_HOOK_API = (first, last)


class Raising(Plugin):
    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        raise RuntimeError("out of names")


class Listing(Plugin):
    @hookimpl
    def hotshoe_named_models(self) -> list[str]:
        return ["one"]


class Stranger:
    """Says nothing of the hook API."""


def missing() -> object:
    raise ImportError("no such library")


def manager(disabled: tuple[str, ...] = (), **plugins: object) -> PluginManager:
    def loader(plugin: object):
        return plugin if plugin is missing else lambda: plugin

    points = [EntryPoint(n, f"dist-{n}", "1", loader(p)) for n, p in plugins.items()]
    return PluginManager(points, disabled)


def items(offered: list[tuple[object, str]]) -> list[str]:
    """Leave out who offers what."""
    return [item for _, item in offered]


def errors(**plugins: object) -> dict[str, str | None]:
    return {record.name: record.error for record in manager(**plugins).records}


def test_names_are_merged() -> None:
    found = manager(b=Plugin(two="2"), a=Plugin(one="1"))
    assert found.mapping("hotshoe_named_models") == {"one": "1", "two": "2"}
    assert [r.name for r in found.records] == ["a", "b"]
    assert found.records[0].hooks == ("hotshoe_candidates", "hotshoe_named_models")
    assert found.owner("hotshoe_named_models", "two").distribution == "dist-b"


def test_sequences_follow_plugin_names_and_get_arguments() -> None:
    found = manager(b=Plugin(two="2"), a=Plugin(one="1"))
    assert items(found.sequence("hotshoe_candidates", platform="p")) == ["one on p", "two on p"]


def test_the_same_name_twice_is_nobodys() -> None:
    hook = "hotshoe_named_models"
    found = manager(a=Plugin(one="1", own="a"), b=Plugin(one="2"))
    assert found.mapping(hook) == {"own": "a"}
    text = found.conflicts(hook)["one"]
    assert "plugins 'a' and 'b' both offer 'one'" in text
    assert "--disable-plugins" in text
    with pytest.raises(PluginError, match="'a' and 'b' both offer 'one'"):
        found.pick("model", "one", hook)


def test_who_contests_a_name_is_named_with_its_package() -> None:
    found = manager(a=Plugin(one="1"), b=Plugin(one="2"))
    text = found.conflicts("hotshoe_named_models")["one"]
    assert "(dist-a 1 and dist-b 1)" in text


def test_a_name_in_its_own_package_is_not_contested() -> None:
    hook = "hotshoe_named_models"
    points = [
        EntryPoint("aaa", "foreign", "2", functools.partial(Plugin, cpu="theirs")),
        EntryPoint("cpu", "hotshoe-platform-cpu", "1", functools.partial(Plugin, cpu="ours")),
    ]
    found = PluginManager(points)
    assert found.mapping(hook) == {"cpu": "ours"}
    assert found.conflicts(hook) == {}
    assert found.owner(hook, "cpu").distribution == "hotshoe-platform-cpu"
    warned, own = found.records
    assert warned.warning == "aaa: 'cpu' belongs to hotshoe-platform-cpu 1; rename yours"
    assert own.warning is None


def test_code_that_fails_is_its_plugins() -> None:
    hook, found = "hotshoe_named_models", manager(a=Plugin(one="1"))
    with (
        pytest.raises(PluginError, match=r"plugin a \(dist-a 1\) is defective: one: KeyError: 'x'"),
        blaming_plugin(found, hook, "one"),
    ):
        raise KeyError("x")
    for passed in (ConfigError("x"), KeyboardInterrupt(), ModuleNotFoundError()):
        with pytest.raises(type(passed)), blaming_plugin(found, hook, "one", ModuleNotFoundError):
            raise passed


@pytest.mark.parametrize("value", [{"one": 5}, {5: "one"}, {"one": None}])
def test_what_is_no_entry_is_its_plugins_fault_alone(value: dict) -> None:
    found = manager(good=Plugin(two="2"), bad=Plugin(x="y"))
    found._pm.get_plugin("bad").models = value
    assert found.mapping("hotshoe_named_models") == {"two": "2"}
    [error] = [r.error for r in found.records if r.error]
    assert "it failed in hotshoe_named_models: TypeError: it returned" in error


def test_a_plugin_that_cannot_be_imported_is_broken_not_absent() -> None:
    found = manager(good=Plugin(one="1"), bad=missing)
    assert {r.name: r.error for r in found.records} == {
        "bad": "ImportError: no such library",
        "good": None,
    }
    assert found.mapping("hotshoe_named_models") == {"one": "1"}


def test_other_hook_versions_are_refused_with_both_versions() -> None:
    found = errors(too_old=TooOld(), too_new=TooNew(), same=Plugin())
    assert found["same"] is None
    old = f"upgrade its package to one built for hook API {HOOK_API}"
    new = f"upgrade hotshoe to one that serves {HOOK_API + 1}"
    for name, version, remedy in (
        ("too_old", HOOK_API - 2, old),
        ("too_new", HOOK_API + 1, new),
    ):
        assert f"built for hook API {version}" in found[name]
        assert found[name].endswith(remedy)
        assert f"serves {HOOK_API - 1} and {HOOK_API}" in found[name]


def test_a_plugin_that_states_no_version_is_told_what_to_state() -> None:
    assert f"states HOTSHOE_HOOK_API = {HOOK_API}" in errors(stranger=Stranger())["stranger"]


def test_the_version_before_is_served_and_warned_about() -> None:
    with pytest.warns(DeprecationWarning, match="install a version of it that is built for"):
        found = manager(old=Old(one="1"))
    [record] = found.records
    assert record.error is None
    assert f"hook API {HOOK_API - 1} is deprecated" in record.warning
    assert found.mapping("hotshoe_named_models") == {"one": "1"}


@pytest.mark.parametrize(
    ("first", "last", "served"),
    [
        (HOOK_API - 5, HOOK_API, True),
        (HOOK_API, HOOK_API + 1, True),
        (HOOK_API - 1, HOOK_API + 3, True),
        (HOOK_API + 1, HOOK_API + 2, False),
        (HOOK_API - 3, HOOK_API - 2, False),
    ],
)
def test_a_plugin_may_state_a_range(first: int, last: int, served: bool) -> None:
    error = errors(a=Span(first, last))["a"]
    assert (error is None) is served
    if not served:
        assert f"built for hook API {first} to {last}" in error


@pytest.mark.parametrize("stated", ["1", (1,), (1, 2, 3), (None, 1), 1.5])
def test_a_version_that_is_none(stated: object) -> None:
    plugin = Plugin()
    plugin.HOTSHOE_HOOK_API = stated
    assert "built for hook API" in errors(a=plugin)["a"]


def test_the_next_version_of_core_serves_what_was_built_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = Plugin(one="1")
    monkeypatch.setattr(hookspecs, "HOOK_API", HOOK_API + 1)
    with pytest.warns(DeprecationWarning, match=f"for hook API {HOOK_API} is deprecated"):
        [record] = manager(a=plugin).records
    assert record.error is None
    monkeypatch.setattr(hookspecs, "HOOK_API", HOOK_API + 2)
    assert "built for hook API" in errors(a=plugin)["a"]


def test_a_hook_that_goes_away_warns_those_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def hotshoe_named_models() -> dict[str, str]: ...

    goes = DeprecationWarning("hotshoe_named_models is gone in 0.9; use hotshoe_models")
    marked = hookspecs.hookspec(warn_on_impl=goes)(hotshoe_named_models)
    monkeypatch.setattr(hookspecs, "hotshoe_named_models", marked)
    with pytest.warns(DeprecationWarning, match="gone in 0.9"):
        found = manager(a=Plugin(one="1"))
    assert "gone in 0.9" in found.records[0].warning
    assert found.mapping("hotshoe_named_models") == {"one": "1"}


def test_a_misspelt_hook_is_refused() -> None:
    error = errors(a=Misspelt())["a"]
    assert "unknown hook hotshoe_named_model; did you mean hotshoe_named_models?" in error


class Unmarked(Plugin):
    def hotshoe_named_models(self) -> dict[str, str]:
        return {}


def test_a_hook_that_nobody_would_call_is_refused() -> None:
    error = errors(a=Unmarked())["a"]
    assert "hotshoe_named_models is not marked; put @hotshoe.plugins.hookimpl before it" in error


def test_what_is_no_function_is_no_hook() -> None:
    plugin = Plugin(one="1")
    plugin.hotshoe_acme = "a package that the plugin imports"
    [record] = manager(a=plugin).records
    assert record.error is None and "hotshoe_acme" not in record.hooks


def test_causes_of_several_lines_are_told_on_one() -> None:
    class Greedy:
        HOTSHOE_HOOK_API = HOOK_API

        @hookimpl
        def hotshoe_named_models(self, wanted: str) -> dict[str, str]:
            return {}

    def load() -> object:
        raise ImportError("libvendor.so.6:\n  undefined symbol: f")

    points = [EntryPoint("a", "d", "1", Greedy), EntryPoint("b", "d", "1", load)]
    greedy, unlinked = PluginManager(points).records
    assert greedy.error is not None and "\n" not in greedy.error
    assert "{'wanted'} are declared in the hookimpl" in greedy.error
    assert unlinked.error == "ImportError: libvendor.so.6: undefined symbol: f"


def test_two_plugins_of_one_name() -> None:
    points = [EntryPoint("a", f"dist-{i}", "1", lambda: Plugin(one="1")) for i in (1, 2)]
    for record, other in zip(PluginManager(points).records, ("dist-2", "dist-1"), strict=True):
        named = f"{record.distribution} and {other} both name a plugin 'a', so neither is used"
        assert named in record.error


@pytest.mark.parametrize("own", ["hotshoe-a", "hotshoe-platform-a"])
def test_a_foreign_plugin_cannot_take_the_name_of_hotshoes_own(own: str) -> None:
    points = [EntryPoint("a", name, "1", lambda: Plugin(one="1")) for name in ("aaa", own)]
    foreign, ours = PluginManager(points).records
    assert ours.error is None
    assert foreign.error == f"the name 'a' belongs to {own}; rename its entry point"


def test_a_disabled_plugin_is_not_imported() -> None:
    def load() -> object:
        raise AssertionError("imported")

    [record] = PluginManager([EntryPoint("a", "d", "1", load)], disabled=["a"]).records
    assert record.disabled


@pytest.mark.parametrize(
    ("text", "may"),
    [("def hotshoe_platforms(): ...", True), ("import nothing_of_this_name", False)],
)
def test_the_text_of_what_cannot_be_imported_says_what_it_may_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, may: bool
) -> None:
    (tmp_path / "vendor_pack").mkdir()
    (tmp_path / "vendor_pack/__init__.py").write_text("raise ImportError")
    (tmp_path / "vendor_pack/plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("vendor_pack.plugin", "vendor_pack"):
        load = functools.partial(importlib.import_module, module)
        point = EntryPoint("vendor", "vendor", "1", load, module)
        found = PluginManager([point]).broken("hotshoe_platforms")
        assert bool(found) is (may and module != "vendor_pack")


@pytest.mark.parametrize(
    ("plugin", "cause"),
    [(Raising(), "RuntimeError: out of names"), (Listing(), "TypeError: it returned list")],
)
def test_a_hook_that_fails_stops_nobody_else(plugin: Plugin, cause: str) -> None:
    hook = "hotshoe_named_models"
    found = manager(a=plugin, b=Plugin(one="1"))
    assert found.mapping(hook) == {"one": "1"}
    error = f"it failed in {hook}: {cause}"
    assert [r.error for r in found.records] == [error, None]
    assert [r.name for r in found.broken(hook)] == ["a"]
    with pytest.raises(PluginError, match=f"plugin a is broken: {error}"):
        found.pick("model", "two", hook)
    assert items(found.sequence("hotshoe_candidates", platform="p")) == ["one on p"]


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
    many = manager(a=Plugin(**{f"m{number}": "1" for number in range(41)}))
    with pytest.raises(PluginError, match=r"\(choices: 41 names, which `hotshoe plugins` lists\)$"):
        many.pick("model", "m7x", hook)
    with pytest.raises(PluginError, match=r"choices: none installed\)$"):
        manager(a=Plugin()).pick("model", "one", hook)
    with pytest.raises(PluginError, match=r"unknown model 'two'.*plugins 'a' and 'b' both offer"):
        manager(a=Plugin(one="1"), b=Plugin(one="2")).pick("model", "two", hook)


@pytest.mark.parametrize("hook", USUAL)
def test_where_nothing_is_installed_the_usual_distribution_is_named(hook: str) -> None:
    [core] = [point for point in installed_entry_points() if point.name == "core"]
    with pytest.raises(PluginError, match=rf"none installed; {USUAL[hook]} has the usual ones\)$"):
        PluginManager([core]).pick("thing", "one", hook)
    offered = PluginManager().mapping(hook)
    owners = {PluginManager().owner(hook, name).distribution for name in offered}
    assert USUAL[hook] in owners


def test_what_is_missing_may_be_in_a_broken_plugin() -> None:
    found = manager(a=Plugin(one="1"), bad=missing)
    with pytest.raises(PluginError, match=r"plugin bad is broken: ImportError: no such library"):
        found.pick("model", "two", "hotshoe_named_models")


def test_core_is_installed_like_any_other() -> None:
    [core] = [point for point in installed_entry_points() if point.name == "core"]
    assert core.distribution == "hotshoe"
    assert core.load().HOTSHOE_HOOK_API == HOOK_API


class Panic(BaseException):
    """As libraries raise it that are written in other languages."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic(3)])
def test_a_plugin_that_ends_the_process_on_import_is_broken(error: BaseException) -> None:
    def load() -> None:
        raise error

    broken, well = PluginManager(
        [EntryPoint("a", "dist", "1", load), EntryPoint("b", "dist", "1", lambda: Plugin(one="1"))]
    ).records
    assert broken.error == f"{type(error).__name__}: 3"
    assert (well.error, well.hook_api) == (None, HOOK_API)


def test_two_versions_in_one_folder_are_never_chosen_between(tmp_path: Path, monkeypatch) -> None:
    """As a copy over an installation leaves them; the file system's order would decide."""
    for version in ("1.0", "2.0"):
        info = tmp_path / f"hotshoe_x_twice-{version}.dist-info"
        info.mkdir()
        named = f"Metadata-Version: 2.1\nName: hotshoe-x-twice\nVersion: {version}\n"
        (info / "METADATA").write_text(named)
        (info / "entry_points.txt").write_text("[hotshoe]\ntwice = twice\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    [point] = [point for point in installed_entry_points() if point.name == "twice"]
    with pytest.raises(PluginError, match=r"has 1\.0 and 2\.0 of hotshoe-x-twice"):
        point.load()


def test_the_first_folder_counts_as_for_imports(tmp_path: Path, monkeypatch) -> None:
    for folder, version in (("late", "1.0"), ("early", "2.0")):
        info = tmp_path / folder / f"hotshoe_x_over-{version}.dist-info"
        info.mkdir(parents=True)
        named = f"Metadata-Version: 2.1\nName: hotshoe-x-over\nVersion: {version}\n"
        (info / "METADATA").write_text(named)
        (info / "entry_points.txt").write_text("[hotshoe]\nover = json\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    [point] = [point for point in installed_entry_points() if point.name == "over"]
    assert point.version == "2.0"
    assert point.load().__name__ == "json"
