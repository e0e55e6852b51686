"""Tuned configurations as data files, one per kind of GPU, in a folder that the platform ships.

Keys read `bfloat16/4096x14336/16`: type of the weight, out_features x in_features, rows. float16
takes what bfloat16 has: the same bytes at the same rates.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec
from hotshoe_triton.tuning import LIBRARY, LinearConfig

Entries = dict[str, dict[str, Any]]
KEY = re.compile(r"[a-z0-9_]+/[0-9]+x[0-9]+/[0-9]+")


def path_of(folder: Path, facts: DeviceFacts) -> Path:
    """Return the file of a kind of GPU, such as `nvidia-h200.json`."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-") + ".json")


def key_of(spec: LinearSpec, bucket: int) -> str:
    """Return an entry's key."""
    kind = spec.weight.format if spec.weight is not None else spec.dtype
    kind = "bfloat16" if kind == "float16" else kind
    return f"{kind}/{spec.out_features}x{spec.in_features}/{bucket}"


def read(path: Path) -> Entries:
    """Return a file's entries; none where there is no file.

    Raises:
        ConfigError: It is none of these tables.
    """
    if not path.exists():
        return {}
    try:
        entries: Entries = json.loads(path.read_text(encoding="utf-8"))
        for key, entry in entries.items():
            _check(key, entry)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path} is no table of tuned configurations: {error}; mend or remove it"
        ) from None
    return entries


def write(path: Path, entries: Entries) -> None:
    """Replace a file, an entry on each line. Who is interrupted leaves the old one."""
    lines = (f"  {json.dumps(key)}: {json.dumps(entries[key])}" for key in sorted(entries))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    draft.replace(path)


@cache
def table_for(
    folder: Path, spec: LinearSpec, facts: DeviceFacts
) -> dict[tuple[int, int, int], LinearConfig]:
    """Return what is tuned for a product, as `hotshoe_triton.linear` takes it.

    Layers ask for few shapes many times, so that an answer is kept for the process.
    """
    kind, _, _ = key_of(spec, 0).split("/")
    shape = f"{kind}/{spec.out_features}x{spec.in_features}/"
    found = {}
    for key, entry in read(path_of(folder, facts)).items():
        if key.startswith(shape):
            bucket = int(key.rpartition("/")[2])
            found[spec.out_features, spec.in_features, bucket] = config_of(entry)
    return found


def _check(key: str, entry: dict[str, Any]) -> None:
    """Refuse what could only fail while a model is built.

    Raises:
        ValueError, TypeError, AttributeError: It is no entry.
    """
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not named like bfloat16/4096x14336/16")
    config = config_of(entry)
    numbers = {name: value for name, value in asdict(config).items() if name != "kernel"}
    wrong = [name for name, value in numbers.items() if type(value) is not int or value < 0]
    needed = ("block_n", "block_k", "split_k", "warps", "stages")
    theirs = config.kernel == LIBRARY.kernel or config.tile
    wrong += [] if theirs else [name for name in needed if not numbers[name]]
    if wrong:
        raise ValueError(f"{key} has no usable {wrong[0]}: {numbers[wrong[0]]!r}")


def config_of(entry: dict[str, Any]) -> LinearConfig:
    """Return an entry's configuration, without what was measured of it."""
    return LinearConfig(**{name: value for name, value in entry.items() if name != "us"})
