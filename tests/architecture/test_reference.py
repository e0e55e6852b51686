"""The public surface is frozen, and the reference pages say what the code does.

When one of these fails after an intended change, run `make reference` and look at the diff.
"""

import importlib.util
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from hotshoe.config import EngineConfig
from hotshoe.plugins import hookspecs
from hotshoe.slots import SLOTS


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Take back what `serve` does to signals as soon as it is made."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def reference(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_reference", root / "tools/make_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_file_is_current(reference: ModuleType) -> None:
    for path, text in reference.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make reference`"


def test_every_hook_is_documented(root: Path, reference: ModuleType) -> None:
    page = (root / "docs/reference/hooks.md").read_text()
    assert len(reference.hooks()) >= 6
    for name in reference.hooks():
        assert f"## {name}\n" in page
    assert f"version {hookspecs.HOOK_API}." in page


def test_every_flag_is_documented(root: Path, reference: ModuleType) -> None:
    page = (root / "docs/reference/cli.md").read_text()
    flags = [a for p in reference.parsers() for _, actions in reference.groups(p) for a in actions]
    assert len(flags) > 200
    for action in flags:
        for word in action.option_strings:
            assert f"{word}" in page
        assert action.help


def test_every_option_is_documented(root: Path) -> None:
    page = (root / "docs/reference/config.md").read_text()
    for field in fields(EngineConfig):
        assert f"| `{field.name}` |" in page


def test_every_slot_is_documented(root: Path) -> None:
    page = (root / "docs/reference/slots.md").read_text()
    for name, slot in SLOTS.items():
        assert f"## {name}\n" in page
        for field in fields(slot.spec_type):
            assert f"\n{field.name}: " in page
