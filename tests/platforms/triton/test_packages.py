"""Libraries of others are taken in the releases that a candidate knows, and never imported."""

import pytest

from hotshoe_triton import packages
from hotshoe_triton.packages import hindrance


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.6.4", ""),
        ("0.5.0.post1", ""),
        ("0.6.0+cu130", ""),
        ("0.7.0", "duck 0.7.0 is installed, and known are 0.5, 0.6"),
        ("1.6.0", "duck 1.6.0 is installed, and known are 0.5, 0.6"),
    ],
)
def test_releases(monkeypatch: pytest.MonkeyPatch, version: str, said: str) -> None:
    monkeypatch.setattr(packages, "installed", lambda name: version)
    assert hindrance("duck", ("0.5", "0.6")) == said


def test_what_is_not_installed() -> None:
    assert hindrance("no-such-duck", ("1.0",)) == "package no-such-duck is not installed"
