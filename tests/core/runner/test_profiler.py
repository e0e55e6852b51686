"""Traces of what a thread computes."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from hotshoe.errors import RequestError
from hotshoe.runner.profiler import Profiler


def names(path: Path) -> set[str]:
    with gzip.open(path) as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


def test_a_trace_holds_what_was_computed_meanwhile(tmp_path: Path) -> None:
    profiler = Profiler(rank=3)
    torch.ones(4).cumsum(0)
    profiler.start(tmp_path / "new" / "folder")
    torch.eye(4).inverse()
    path = profiler.stop()
    torch.ones(4).cumprod(0)
    assert path.parent == tmp_path / "new" / "folder"
    assert path.name.endswith("-rank3.json.gz")
    found = names(path)
    assert any("inverse" in name for name in found)
    assert not any("cumsum" in name or "cumprod" in name for name in found)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    profiler = Profiler()
    profiler.start(tmp_path)
    with pytest.raises(RequestError, match="stop it first"):
        profiler.start(tmp_path)
    assert profiler.stop().exists()
    with pytest.raises(RequestError, match="start one first"):
        profiler.stop()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profiler = Profiler()
    with pytest.raises(RequestError, match="cannot be made"):
        profiler.start(tmp_path / "file" / "folder")
    profiler.start(tmp_path)
    profiler.stop()
