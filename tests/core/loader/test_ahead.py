"""Tensors that threads read: the bytes of the files, in any sizes, and files that change."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers import WeightTable
from hotshoe.loader import Target, ahead, load_weights
from hotshoe.loader.ahead import Ahead
from hotshoe.loader.sources import Files

SIZES = (3, 5000, 70_000, 1, 25_000, 20_000)
DEVICE = "cpu"


class Transfer:
    """Copies when a copy is waited for, as late as a device may."""

    def __init__(self, granted: int = 1 << 30) -> None:
        self.granted, self.pending = granted, list[tuple[Tensor, Tensor]]()
        self.lock = Lock()  # readers wait for copies while others are asked for

    def host_buffer(self, nbytes: int) -> Tensor:
        if nbytes > self.granted:
            raise RuntimeError("no pages")
        return torch.full((nbytes,), 255, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        with self.lock:
            self.pending.append((source, target))

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        with self.lock:
            mine = list(self.pending)

        def wait() -> Sequence[Tensor]:
            with self.lock:
                for source, target in mine:
                    if any(source is other for other, _ in self.pending):
                        target.copy_(source)
                left = [p for p in self.pending if all(p[0] is not s for s, _ in mine)]
                self.pending = left
            return tensors

        return wait


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few kilobytes, which are used several times each."""
    monkeypatch.setattr(ahead, "PIECE_BYTES", 8192)
    monkeypatch.setattr(ahead, "PIECES", 3)
    monkeypatch.setattr(ahead, "LARGE_BYTES", 4096)


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, Tensor]:
    kinds = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    tensors = {f"w{i}": torch.randn(n).to(kinds[i % 3]) for i, n in enumerate(SIZES)}
    tensors["numbers"] = torch.randint(100, (9000,), dtype=torch.int32)
    for part in range(2):
        own = {name: t for i, (name, t) in enumerate(tensors.items()) if i % 2 == part}
        save_file(own, tmp_path / f"{part}.safetensors")
    return tensors


def opened(folder: Path) -> Files:
    return Files(sorted(folder.glob("*.safetensors")))


def same(ours: Tensor, theirs: Tensor) -> bool:
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_tensors_are_those_of_the_files(small: None, checkpoint: dict, tmp_path: Path) -> None:
    files, transfer, found = opened(tmp_path), Transfer(), {}
    with Ahead(files, files.names(), transfer, DEVICE) as source:
        for name in source.names():
            found[name] = source.tensor(name)
            source.taken(name)
        assert same(source.tensor("w2"), checkpoint["w2"])  # once more, from the file
    assert found.keys() == checkpoint.keys()
    assert all(same(found[name], tensor) for name, tensor in checkpoint.items())


def test_nothing_is_left_to_the_collector(small: None, checkpoint: dict, tmp_path: Path) -> None:
    """A start does not look for garbage behind the loading of weights."""
    gc.collect()
    gc.disable()
    try:
        with Ahead(opened(tmp_path), checkpoint, Transfer(), DEVICE) as source:
            for name in checkpoint:
                source.tensor(name)
        del source
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not any(isinstance(one, Tensor) for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_table_is_filled(small: None, checkpoint: dict, tmp_path: Path) -> None:
    table, taken = WeightTable(), {}
    for name, tensor in checkpoint.items():
        if name != "numbers":
            shape, dtypes = tuple(tensor.shape), frozenset({tensor.dtype})
            table.expect(name, shape, lambda t, n=name: taken.update({n: t}), dtypes=dtypes)
    table.ignore(["numbers"])
    target = Target("cpu", Transfer())
    load_weights(table, tmp_path, "safetensors", torch.float32, 0, target)
    assert all(same(tensor, checkpoint[name]) for name, tensor in taken.items()) and taken


def test_a_file_that_is_cut_off_meanwhile(small: None, checkpoint: dict, tmp_path: Path) -> None:
    files = opened(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        with path.open("r+b") as file:
            file.truncate(2000)
    large = [name for name in files.names() if name in ("w2", "w4", "w1", "w5")]
    with (
        Ahead(files, large, Transfer(), DEVICE) as source,
        pytest.raises(CheckpointError, match=f"ends within {large[0]}"),
    ):
        source.tensor(large[0])


def test_a_host_without_room(checkpoint: dict, tmp_path: Path) -> None:
    files = opened(tmp_path)
    with pytest.raises(MemoryLimitError, match="the host grants no"):
        Ahead(files, files.names(), Transfer(granted=-1), DEVICE)
