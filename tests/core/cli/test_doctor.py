"""`hotshoe doctor`: what is there, what is wrong, and what to do."""

import importlib.metadata
import json
import subprocess
from types import SimpleNamespace

import pytest

from hotshoe import host
from hotshoe.cli import doctor
from hotshoe.plugins import manager
from hotshoe.plugins.manager import EntryPoint


def wrong(findings) -> list[doctor.Finding]:
    return [finding for finding in findings if finding.state == "wrong"]


def test_a_page_about_this_machine(hotshoe) -> None:
    ran = hotshoe("doctor", "--json")
    found = {(f["topic"], f["name"]): f for f in json.loads(ran.out)}
    assert found["package", "hotshoe"]["state"] == "ok"
    assert found["package", "torch"]["text"] == importlib.metadata.version("torch")
    assert found["platform", "null"]["state"] == "ok"
    assert ran.code == any(f["state"] == "wrong" for f in found.values())
    text = hotshoe("doctor").out
    assert "temporary space" in text


def test_a_requirement_that_is_not_installed(monkeypatch) -> None:
    own = SimpleNamespace(name="hotshoe-x", version="1", requires=["no-such>=1", 'y; extra == "z"'])
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [own])
    [finding] = wrong(doctor.packages())
    assert finding.text == "not installed; hotshoe-x needs it"
    assert finding.remedy == "pip install no-such"


def test_a_plugin_that_is_broken(monkeypatch) -> None:
    def load() -> object:
        raise ImportError("no such library")

    points = [EntryPoint("bad", "bad", "1", load)]
    monkeypatch.setattr(manager, "installed_entry_points", lambda: points)
    [finding] = wrong(doctor.plugins())
    assert "no such library" in finding.text
    assert "--disable-plugins bad" in finding.remedy


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os; os.abort()"])
def test_platforms_that_take_their_process_along(monkeypatch, code: str) -> None:
    run = subprocess.run

    def instead(words, **options):
        return run([words[0], "-c", code], **options)

    monkeypatch.setattr(subprocess, "run", instead)
    [finding] = doctor.platforms()
    assert finding.state == "wrong"
    assert "ended with code" in finding.text


def test_platforms_that_hang(monkeypatch) -> None:
    def hang(words, timeout, **options):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    [finding] = wrong(doctor.platforms())
    assert "no answer within" in finding.text


def test_limits_that_are_too_low(monkeypatch, tmp_path) -> None:
    import resource

    monkeypatch.setattr(doctor, "SHARED", tmp_path / "missing")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    limit = tmp_path / "memory.max"
    limit.write_text(f"{512 << 20}\n")
    monkeypatch.setattr(host, "CGROUP_LIMIT", limit)
    found = {finding.name: finding for finding in doctor.system()}
    assert found["shared memory"].state == found["open files"].state == "wrong"
    assert "may use 512" in found["memory"].text


def test_devices_are_named_with_their_drivers(monkeypatch, tmp_path) -> None:
    kinds = {"0000:01:00.0": "0x030200", "0000:02:00.0": "0x120000", "0000:03:00.0": "0x020000"}
    for name, kind in kinds.items():
        place = tmp_path / "pci" / name
        place.mkdir(parents=True)
        for file, text in (("class", kind), ("vendor", "0x1abc"), ("device", "0x0001")):
            (place / file).write_text(f"{text}\n")
    drivers = tmp_path / "modules" / "swift"
    drivers.mkdir(parents=True)
    (drivers / "version").write_text("5.1\n")
    (tmp_path / "pci" / "0000:01:00.0" / "driver").symlink_to(drivers)
    monkeypatch.setattr(doctor, "PCI", tmp_path / "pci")
    monkeypatch.setattr(doctor, "MODULES", tmp_path / "modules")
    with_driver, without = doctor.devices()
    assert with_driver.text == "vendor 0x1abc, device 0x0001, driver swift 5.1"
    assert "package of its vendor" in with_driver.remedy
    assert (without.name, without.state) == ("0000:02:00.0", "absent")
    assert without.text.endswith("no driver")
    assert not wrong([with_driver, without])
