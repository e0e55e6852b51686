"""Choice of a platform: available, absent and broken are three different things."""

import pytest

from hotshoe.errors import ConfigError, PlatformError, PluginError
from hotshoe.platform import Absent, Available, Broken, DeviceFacts, Platform, Target
from hotshoe.plugins import PluginManager, hookimpl, platforms
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint
from hotshoe.plugins.platforms import (
    blaming,
    candidates_of,
    choose_platform,
    list_platforms,
    targets_of,
)
from hotshoe.slots import Candidate, accept


class Simulated(Platform):
    """A platform whose finding the test decides."""

    name = "simulated"
    finding: object = None

    def probe(self):
        if isinstance(self.finding, BaseException):
            raise self.finding
        return self.finding

    def facts(self) -> DeviceFacts:
        assert isinstance(self.finding, Available), "asked for facts of a device that is not there"
        return DeviceFacts(self.name, "cpu", "Chip", "v1", 1 << 30, 1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Build a plugin manager whose platforms find what the test says."""

    def build(**findings: object) -> PluginManager:
        classes = {n: type(n, (Simulated,), {"name": n, "finding": f}) for n, f in findings.items()}
        monkeypatch.setattr(platforms, "resolve_lazy", classes.__getitem__)

        class Plugin:
            HOTSHOE_HOOK_API = HOOK_API

            @hookimpl
            def hotshoe_platforms(self) -> dict[str, str]:
                return {name: name for name in classes}

        return PluginManager([EntryPoint("plugin", "dist", "1", Plugin)])

    return build


def test_the_highest_score_wins_then_the_name(machine) -> None:
    found = machine(b=Available(5), a=Available(5), c=Available(4), d=Absent("no device"))
    assert choose_platform(found, "auto").name == "a"
    assert choose_platform(machine(a=Available(1), b=Available(2)), "auto").name == "b"


def test_negative_scores_are_chosen_by_name_alone(machine) -> None:
    found = machine(a=Available(-1), b=Absent("no device"))
    reasons = r"no platform is usable here \(a: by name alone, --platform a; b: no device\)"
    with pytest.raises(PlatformError, match=reasons):
        choose_platform(found, "auto")
    assert choose_platform(found, "a").name == "a"


def test_a_broken_platform_is_never_silently_replaced(machine) -> None:
    found = machine(a=Available(5), b=Broken("driver too old"), c=OSError("no library"))
    with pytest.raises(PlatformError, match=r"b: driver too old; c: OSError: no library\. Mend it"):
        choose_platform(found, "auto")
    assert choose_platform(found, "a").name == "a"


@pytest.mark.parametrize(
    ("finding", "message"),
    [
        (Absent("no device"), "platform a is not usable here: no device"),
        (Broken("driver too old"), "platform a is broken: driver too old"),
        (OSError("no library"), "platform a is broken: OSError: no library"),
    ],
)
def test_a_named_platform_says_why_it_does_not_work(machine, finding, message: str) -> None:
    with pytest.raises(PlatformError, match=message):
        choose_platform(machine(a=finding, b=Available(5)), "a")


def test_nothing_usable_lists_the_reasons(machine) -> None:
    with pytest.raises(PlatformError, match="a: no device; b: wrong system"):
        choose_platform(machine(a=Absent("no device"), b=Absent("wrong system")), "auto")


def test_a_plugin_that_cannot_be_imported_is_not_taken_for_absent() -> None:
    def load() -> object:
        raise ImportError("no such library")

    found = PluginManager([EntryPoint("cpu", "dist", "1", load)])
    for name in ("auto", "cpu"):
        with pytest.raises((PlatformError, PluginError), match=r"cpu is broken: ImportError: no"):
            choose_platform(found, name)


@pytest.mark.parametrize("name", ["auto", "a"])
def test_a_platform_beside_a_plugin_that_cannot_be_imported(machine, name: str) -> None:
    def load() -> object:
        raise ImportError("no such library")

    found = machine(a=Available(5))
    [own] = found._points.values()
    found = PluginManager([own, EntryPoint("vendor", "vendor-pack", "1", load)])
    if name == "auto":  # it might have been the accelerator
        with pytest.raises(
            PlatformError, match="plugin vendor is broken: ImportError: no such library"
        ):
            choose_platform(found, name)
    else:
        assert choose_platform(found, name).name == "a"
    row = list_platforms(found)[-1]
    assert (row.name, row.distribution) == ("vendor", "vendor-pack")
    assert row.detection == Broken("its plugin: ImportError: no such library")


def test_a_broken_platform_gives_way_to_a_better_one_alone(machine, caplog) -> None:
    found = machine(a=Available(5), b=Broken("driver too old", 4))
    assert choose_platform(found, "auto").name == "a"
    assert "platform b is broken, and a better one is here: driver too old" in caplog.text
    with pytest.raises(PlatformError, match="b: driver too old"):
        choose_platform(machine(a=Available(5), b=Broken("driver too old", 5)), "auto")


def test_an_unknown_name(machine) -> None:
    with pytest.raises(PluginError, match=r"unknown platform 'alpa'; did you mean alpha\?"):
        choose_platform(machine(alpha=Available(1)), "alpa")


def test_naming_one_platform_imports_no_other(machine, monkeypatch) -> None:
    found = machine(a=Available(1), b=Available(2))
    asked: list[str] = []
    plain = platforms.resolve_lazy
    monkeypatch.setattr(
        platforms, "resolve_lazy", lambda name: (asked.append(name), plain(name))[1]
    )
    choose_platform(found, "a")
    assert asked == ["a"]


def test_list(machine) -> None:
    found = list_platforms(machine(b=Broken("x"), a=Available(1), c=Absent("y")))
    assert [(s.name, s.distribution, s.detection) for s in found] == [
        ("a", "dist", Available(1)),
        ("b", "dist", Broken("x")),
        ("c", "dist", Absent("y")),
    ]
    assert [s.facts is not None for s in found] == [True, False, False]


def test_automatic_choice_does_not_pass_over_a_broken_plugin_of_platforms(machine) -> None:
    """It might have been the accelerator."""

    class Failing:
        HOTSHOE_HOOK_API = HOOK_API

        @hookimpl
        def hotshoe_platforms(self) -> dict[str, str]:
            raise OSError("libvendor.so.6 is missing")

    found = machine(a=Available(1))
    points = [EntryPoint("failing", "dist-failing", "1", Failing)]
    [plugin] = [plugin for _, plugin in found._pm.list_name_plugin()]
    found = PluginManager([EntryPoint("plugin", "dist", "1", lambda: plugin), *points])
    with pytest.raises(
        PlatformError, match=r"plugin failing is broken: .*libvendor.so.6 is missing"
    ):
        choose_platform(found, "auto")
    assert choose_platform(found, "a").name == "a"


def test_automatic_choice_between_two_of_one_name_is_an_error(machine) -> None:
    found = machine(a=Available(1))
    [plugin] = [plugin for _, plugin in found._pm.list_name_plugin()]
    found = PluginManager([EntryPoint(n, f"dist-{n}", "1", type(plugin)) for n in "xy"])
    with pytest.raises(PlatformError, match="'x' and 'y' both offer 'a'"):
        choose_platform(found, "auto")
    with pytest.raises(PluginError, match="'x' and 'y' both offer 'a'"):
        choose_platform(found, "a")


def test_a_finding_that_is_none(machine) -> None:
    with pytest.raises(PlatformError, match="probe\\(\\) returned bool, not a detection"):
        choose_platform(machine(a=True), "a")


def test_a_score_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"Available\.score is of type int, not 'high'"):
        Available("high")


def test_a_platform_with_another_name_than_its_plugin_says(machine, monkeypatch) -> None:
    found = machine(a=Available(1))
    monkeypatch.setattr(
        platforms,
        "resolve_lazy",
        lambda name: type("X", (Simulated,), {"name": "b", "finding": Available(1)}),
    )
    [status] = list_platforms(found)
    assert status.detection == Broken("it calls itself 'b'; its plugin names it 'a'")


def test_targets_that_are_none() -> None:
    good = Target("chip", DeviceFacts("a", "cpu", "Chip", "v1", 1 << 30, 1))
    assert targets_of(type("A", (Simulated,), {"targets": (good,)})()) == [good]
    with pytest.raises(TypeError, match="targets holds str, not Target"):
        targets_of(type("A", (Simulated,), {"targets": (good, "chip")})())


def test_facts_that_fail_make_a_platform_broken(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine(a=Available(1))

    def fail(self: Simulated) -> DeviceFacts:
        raise OSError("the driver hangs")

    monkeypatch.setattr(Simulated, "facts", fail)
    [status] = list_platforms(found)
    assert status.detection == Broken("facts() failed: OSError: the driver hangs")
    assert status.facts is None


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (lambda: None, "facts() returned NoneType, not DeviceFacts"),
        (
            lambda: DeviceFacts("a", "cpu", "a device", "any", "4G", 1),
            "DeviceFacts.memory_bytes is of type int, not '4G'",
        ),
        (
            lambda: DeviceFacts("a", None, "a device", "any", 1, 1),
            "DeviceFacts.device is of type str, not None",
        ),
    ],
)
def test_facts_that_are_none_make_a_platform_broken(machine, facts, cause, monkeypatch) -> None:
    found = machine(a=Available(1))
    monkeypatch.setattr(Simulated, "facts", lambda self: facts())
    [status] = list_platforms(found)
    assert status.detection == Broken(f"facts() failed: TypeError: {cause}")


def test_a_platform_that_ends_the_process_is_broken(machine) -> None:
    found = machine(a=SystemExit("no licence"), b=Available(1))
    [a, b] = list_platforms(found)
    assert a.detection == Broken("SystemExit: no licence")
    assert b.facts is not None


def test_candidates_know_the_hook_version_of_their_package(machine) -> None:
    found = machine(a=Available(1))
    platform = choose_platform(found, "a")
    platform.candidates = lambda: [Candidate("rms_norm", "mine", accept, "m:f")]
    [candidate] = candidates_of(platform, found)
    assert candidate.hook_api == HOOK_API
    assert candidate.package == "dist 1"


def test_what_is_no_candidate_is_named(machine) -> None:
    found = machine(a=Available(1))
    platform = choose_platform(found, "a")
    platform.candidates = lambda: ["rms_norm"]
    with pytest.raises(PluginError, match="plugin plugin offers 'rms_norm', which is no Candidate"):
        candidates_of(platform, found)


@pytest.mark.parametrize("error", [OSError("libvendor.so is missing"), SystemExit("no licence")])
def test_whose_code_fails_is_named(error: BaseException) -> None:
    with (
        pytest.raises(PlatformError, match=r"platform a is defective: \w+: (lib|no)"),
        blaming("a"),
    ):
        raise error
    with pytest.raises(ConfigError, match="a user's mistake"), blaming("a"):
        raise ConfigError("a user's mistake")
