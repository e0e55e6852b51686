"""Weights in shared memory: what a reader finds, and that nothing of it stays."""

import os
from pathlib import Path

import pytest
import torch

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.loader import shared
from hotshoe.loader.shared import shared_weights
from hotshoe.loader.sources import source_of

TENSORS = {
    "a": torch.randn(3, 5),
    "b": torch.arange(7, dtype=torch.int8),
    "empty": torch.empty(0, 4),
    "c": torch.randn(4, 6).bfloat16().T,
    "d": torch.randn(2).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("nameless", [True, False])
def test_a_reader_finds_every_tensor(nameless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not nameless:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    with shared_weights(TENSORS.items()) as path:
        source = source_of(path)
        assert set(source.names()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            found = source.tensor(name)
            assert found.dtype == tensor.dtype and found.shape == tensor.shape
            assert torch.equal(found.float(), tensor.float())
    with pytest.raises(CheckpointError, match="is missing"):
        source_of(path)


def test_a_path_stays_a_path(tmp_path: Path) -> None:
    with shared_weights(tmp_path) as path:
        assert path == str(tmp_path)
    assert tmp_path.exists()


def test_types_that_files_cannot_have() -> None:
    sharing = shared_weights([("w", torch.zeros(1, dtype=torch.complex64))])
    with pytest.raises(CheckpointError, match=r"w is of type torch\.complex64"), sharing:
        pass


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, begin: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared.os, "posix_fallocate", refuse)
    sharing = shared_weights([("w", torch.zeros(1))])
    with pytest.raises(MemoryLimitError, match="no room for weights of 0 MiB: No"), sharing:
        pass
