"""Packages that come for one release of PyTorch are refused beside another, before any import."""

import importlib.machinery
import importlib.metadata
import importlib.util

import pytest
import torch

from hotshoe_xpu.extension import hindrance

PACKAGE, DISTRIBUTION = "vendors_package", "vendors-package"


def judge(monkeypatch: pytest.MonkeyPatch, version: str | None) -> str:
    """Judge as if the package were there, of a version or of none that is known."""

    def told(name: str) -> str:
        assert name == DISTRIBUTION
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    spec = importlib.machinery.ModuleSpec(PACKAGE, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", told)
    monkeypatch.setattr(torch, "__version__", "2.13.0+xpu")
    return hindrance(PACKAGE, DISTRIBUTION)


def test_a_package_that_is_not_there() -> None:
    assert hindrance(PACKAGE, DISTRIBUTION) == "package vendors_package is not installed"


@pytest.mark.parametrize("version", ["2.13.0", "2.13.10+xpu"])
def test_the_same_release_serves(monkeypatch, version: str) -> None:
    assert judge(monkeypatch, version) == ""


@pytest.mark.parametrize("version", ["2.8.10+xpu", "2.1.30", "2.130.0", "3.13.0"])
def test_another_release_is_refused(monkeypatch, version: str) -> None:
    found = judge(monkeypatch, version)
    assert f"vendors_package {version} is for PyTorch " in found
    assert "this is 2.13.0+xpu" in found


def test_a_release_that_is_not_known_is_refused(monkeypatch) -> None:
    assert "does not say for which PyTorch" in judge(monkeypatch, None)
