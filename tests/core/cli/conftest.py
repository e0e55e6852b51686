"""The `hotshoe` command in this process, on the null platform, whose tokens count upwards."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hotshoe.cli.main import main


class Ran(NamedTuple):
    """What one command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def hotshoe(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def null(model_dir: Path) -> list[str]:
    """The words that choose the tiny model on the null platform."""
    return [str(model_dir), "--platform", "null"]
