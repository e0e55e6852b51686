"""Which files of a directory make its checkpoint.

Files are taken in natural order (model-2 before model-10), identical on every rank. An index, or
else `model.safetensors`, says what the checkpoint is: other files beside it, such as the same
weights under their author's own names, are not read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hotshoe.errors import CheckpointError
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB
from hotshoe.models.quantization import INDEX

SINGLE = "model.safetensors"
MAX_INDEX_BYTES, MAX_SHARDS = 64 * MIB, 10_000
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


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
            else "; fetch the checkpoint's, or take random numbers with --load-format dummy"
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
