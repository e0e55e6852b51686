"""Feeds a model's weight table from its directory. Decides which files there are, and checks them.

Files are taken in natural order (model-2 before model-10), identical on every rank. An index, or
else `model.safetensors`, says what the checkpoint is: other files beside it, such as the same
weights under their author's own names, are not read.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import WeightTable
from hotshoe.loader.safetensors import SafetensorsFile
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES, MAX_SHARDS = 64 * MIB, 10_000
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
#: Random values are drawn once and repeated; long enough that layers differ.
DUMMY_PERIOD = 1_000_003


def load_weights(
    table: WeightTable,
    path: Path,
    load_format: str,
    dtype: torch.dtype,
    seed: int,
    device: str = "cpu",
) -> None:
    """Fill the table.

    Args:
        table: What the model expects.
        path: The model directory.
        load_format: "safetensors" or "dummy".
        dtype: Type of dummy weights.
        seed: Seed of dummy weights.
        device: Where dummy weights are made.

    Raises:
        CheckpointError: Missing files or tensors, unexpected tensors, wrong shapes, pickles only.
    """
    if load_format == "dummy":
        _feed_dummy(table, dtype, seed, device)
    else:
        for file_path in checkpoint_files(path):
            _feed_file(table, SafetensorsFile(file_path))
    table.check_complete()


def _feed_file(table: WeightTable, file: SafetensorsFile) -> None:
    """Feed one file, letting go of its pages as layers take what they need."""
    for name in file.names():
        known = table.known_as(name)
        if table.wants(known):
            table.feed(known, file.tensor(name))
            file.release_through(name)


def checkpoint_files(path: Path) -> list[Path]:
    """Return the safetensors files of a model directory in natural order.

    Raises:
        CheckpointError: None there, or one that the index names is missing.
    """
    if (path / INDEX).exists():
        files = _indexed_files(path)
    elif (path / SINGLE).exists():
        files = [path / SINGLE]
    else:
        files = list(path.glob("*.safetensors"))
    if not files:
        pickled = sorted(f.name for pattern in PICKLES for f in path.glob(pattern))
        hint = (
            f" ({pickled[0]} is a pickle, which could run code and is never loaded: convert it)"
            if pickled
            else ""
        )
        raise CheckpointError(f"{path} holds no *.safetensors file{hint}")
    return sorted(files, key=natural_key)


def _indexed_files(path: Path) -> list[Path]:
    """Return the files that a directory's index names."""
    weight_map = read_json(path / INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{path / INDEX} has no weight_map")
    names = {str(name) for name in weight_map.values()}
    if len(names) > MAX_SHARDS:
        raise CheckpointError(
            f"{path / INDEX} names {len(names)} files; at most {MAX_SHARDS} can be"
        )
    for name in sorted(names):
        if Path(name).name != name:
            raise CheckpointError(
                f"{path / INDEX} names {name[:200]!r}, which is no file beside it"
            )
        if not os.path.exists(path / name):  # noqa: PTH110 (which takes names that no file can have)
            raise CheckpointError(f"{path} lacks shard {name[:200]}; fetch it again")
    return [path / name for name in names]


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Order names with numbers by their value."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _feed_dummy(table: WeightTable, dtype: torch.dtype, seed: int, device: str) -> None:
    """Feed small random values: the same name and seed give the same tensor."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.empty(DUMMY_PERIOD).normal_(0.0, 0.02, generator=generator).to(device, dtype)
    for name, expected in table.expected.items():
        table.feed(name, _dummy_tensor(name, expected.shape, base))


def _dummy_tensor(name: str, shape: tuple[int, ...], base: Tensor) -> Tensor:
    count = int(torch.Size(shape).numel())
    rolled = base.roll(zlib.crc32(name.encode()) % DUMMY_PERIOD)
    repeats = -(-count // DUMMY_PERIOD)
    values = rolled.repeat(repeats)[:count].view(shape)
    return values + 1 if len(shape) == 1 and "norm" in name else values
