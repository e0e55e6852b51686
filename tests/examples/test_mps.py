"""examples/platform-mps: Apple's GPUs from outside, refused here and played by a processor."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotshoe.errors import PlatformError
from hotshoe.platform import Absent, Available, Broken
from hotshoe.plugins.manager import EntryPoint, PluginManager, installed_entry_points
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import NormSpec
from hotshoe_conformance.kit import Kit, Options


@pytest.fixture(scope="module")
def package(root: Path):
    """Its modules, without an installation."""
    folder = str(root / "examples/platform-mps")
    sys.path.insert(0, folder)
    yield importlib.import_module("hotshoe_mps.platform")
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "hotshoe_mps"]:
        del sys.modules[name]


@pytest.fixture
def plugins(package) -> PluginManager:
    def load():
        return importlib.import_module("hotshoe_mps.plugin")

    return PluginManager([*installed_entry_points(), EntryPoint("mps", "tests", "0", load)])


def test_it_is_small(root: Path) -> None:
    files = (root / "examples/platform-mps/hotshoe_mps").glob("*.py")
    lines = [line for path in files for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 250


@pytest.mark.parametrize(
    ("system", "built", "available", "kind"),
    [
        (("Linux", "x86_64"), True, True, Absent),
        (("Darwin", "x86_64"), True, True, Absent),
        (("Darwin", "arm64"), False, False, Broken),
        (("Darwin", "arm64"), True, False, Broken),
        (("Darwin", "arm64"), True, True, Available),
    ],
)
def test_what_is_found(package, monkeypatch, system, built, available, kind) -> None:
    monkeypatch.setattr(package.platform, "system", lambda: system[0])
    monkeypatch.setattr(package.platform, "machine", lambda: system[1])
    monkeypatch.setattr("torch.backends.mps.is_built", lambda: built)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: available)
    assert isinstance(package.MpsPlatform().probe(), kind)


def test_it_is_refused_by_name_where_it_is_absent(package, plugins, monkeypatch) -> None:
    monkeypatch.setattr(package.platform, "system", lambda: "Linux")
    with pytest.raises(PlatformError, match="platform mps is not usable here: no Apple processor"):
        choose_platform(plugins, "mps")


@pytest.mark.parametrize("slot", ["attention", "linear", "rms_norm", "sample"])
def test_what_it_brings_conforms(plugins, slot: str) -> None:
    name = "host" if slot == "sample" else "metal"
    report = Kit("mps-played", Options(slot=slot, candidate=name, quick=True), plugins).run()
    [found] = [c for s in report.slots for c in s.candidates]
    assert report.defects == []
    assert found.passed > 5


def test_the_shader_gets_what_the_one_that_is_played_gets(package, monkeypatch) -> None:
    kernels = importlib.import_module("hotshoe_mps.kernels")
    compiled = []

    def compile_shader(source: str) -> SimpleNamespace:
        compiled.append(source)
        return SimpleNamespace(rms_norm=kernels.Played.rms_norm)

    monkeypatch.setattr("torch.mps.compile_shader", compile_shader)
    facts = replace(package.MpsPlatform().facts(), device="cpu")
    x, weight = torch.randn(3, 8), torch.randn(8)
    for dtype, name in kernels.TYPES.items():
        norm = kernels.build_norm(NormSpec(8, 1e-6, dtype), facts)
        kind = getattr(torch, dtype)
        expected = torch.nn.functional.rms_norm(x.to(kind).float(), (8,), eps=1e-6) * weight
        torch.testing.assert_close(
            norm(x.to(kind), weight.to(kind)).float(), expected, rtol=2e-2, atol=2e-2
        )
        assert f"device {name}* out" in compiled[-1] and "TYPE" not in compiled[-1]
