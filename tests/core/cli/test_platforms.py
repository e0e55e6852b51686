"""`hotshoe platforms`: each of the three findings is shown as what it is."""

import json

import pytest

from hotshoe.cli.main import main
from hotshoe.cli.platforms import describe
from hotshoe.platform import Absent, Available, Broken, DeviceFacts, PlatformStatus

FACTS = DeviceFacts("p", "cpu", "Chip", "v1", 3 << 30, 4, frozenset({"b", "a"}))
ONE = DeviceFacts("p", "cpu", "Chip", "v1", 3 << 30, 1)


@pytest.mark.parametrize(
    ("detection", "facts", "shown"),
    [
        (Available(7), FACTS, ("available", "7", "Chip, v1, 4 compute units", "3,072 MiB", "a b")),
        (Available(0), ONE, ("available", "0", "Chip, v1, 1 compute unit", "3,072 MiB", "")),
        (Absent("no device"), None, ("absent", "", "", "", "no device")),
        (Broken("OSError: x"), None, ("broken", "", "", "", "OSError: x")),
    ],
)
def test_findings(detection, facts, shown: tuple[str, ...]) -> None:
    row = describe(PlatformStatus("p", "dist", detection, facts))
    assert (row["platform"], row["distribution"]) == ("p", "dist")
    names = ("status", "score", "device", "memory", "remarks")
    assert tuple(row[name] for name in names) == shown


def test_table(hotshoe) -> None:
    ran = hotshoe("platforms")
    assert ran.code == 0
    [line] = [line for line in ran.out.splitlines() if line.startswith("null ")]
    assert "available" in line
    assert "-1" in line


def test_json(hotshoe) -> None:
    rows = json.loads(hotshoe("platforms", "--json").out)
    assert "null" in [row["platform"] for row in rows]


def test_plugins_that_cannot_bring_a_platform_are_named(monkeypatch, capsys) -> None:
    import hotshoe.plugins.manager as manager

    broken = manager.EntryPoint("broken", "dist", "1", lambda: 1 / 0)
    points = [*manager.installed_entry_points(), broken]
    monkeypatch.setattr(manager, "installed_entry_points", lambda: points)
    assert main(["platforms"]) == 0
    told = capsys.readouterr().err
    assert told == "plugin broken is broken: ZeroDivisionError: division by zero\n"
