"""Keeps matrices that a format has quantized on the host, so that the next start need not do it.

The key of an entry is a digest of all that shapes its numbers: the numbers that were quantized, the
format's recipe and the code that computes it. So files, names, ranks and versions of a model need
not be known, and nothing is taken that was made of something else. An entry is a file in the
safetensors format in a folder that nobody else may write to. Those unused for longest go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers.formats import CostlyFormat, WeightFormat
from hotshoe.layers.weights import HOST
from hotshoe.layers.wrapped import WrappedFormat
from hotshoe.loader.safetensors import SafetensorsFile
from hotshoe.loader.shared import layout

_log = logging.getLogger(__name__)
Pieces: TypeAlias = Mapping[str, Sequence[Tensor]]
#: Of the form of entries: part of each key.
VERSION = 1
NAME = "quantization_cache_dir"
SUFFIX = ".safetensors"
#: Names of entries, and of those that are being written.
ENTRY = re.compile(r"^([0-9a-f]{64}\.safetensors|hotshoe-.*\.part)$")
#: Seconds after which entries are counted again, as other processes write, too.
COUNT_S = 1.0
#: Bytes that a thread takes at once for a digest.
SPAN = 2**21
#: Integers of four bits, two in a byte.
HALVES = ":4"


class KeptFolder:
    """Entries by their digest.

    Args:
        path: Made at the first use.
        max_bytes: Most that all entries take.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._used: set[str] = set()
        self._others: list[tuple[float, int, Path]] = []
        self._free = 0
        self._counted_s: float | None = None
        self._is_full = False

    def find(self, digest: str) -> dict[str, list[Tensor]] | None:
        """Return an entry's tensors; None where there is none.

        Raises:
            ConfigError: Somebody else may write to the folder.
        """
        self._open()
        file = self._file(digest)
        try:
            os.utime(file)
            found = _read(SafetensorsFile(file))
        except FileNotFoundError:
            return None
        except (CheckpointError, OSError, ValueError) as error:
            _log.warning("a kept weight is made again: %s", error)
            return None
        if not self._used:
            _log.info("quantized weights are taken from %s", self._path)
        self._used.add(file.name)
        return found

    def keep(self, digest: str, made: Pieces) -> None:
        """Write an entry; where there is no room, say so once and write no more."""
        try:
            tensors = _packed(made)
            places = layout(tensors)
            if not self._is_full and self._make_room(places[2]):
                self._write(self._file(digest), tensors, *places)
        except (CheckpointError, OSError) as error:  # a type that no file has; no room
            self._stop(getattr(error, "strerror", None) or str(error))

    def _write(
        self,
        file: Path,
        tensors: Mapping[str, Tensor],
        header: bytes,
        begins: Mapping[str, int],
        size: int,
    ) -> None:
        written, path = tempfile.mkstemp(".part", "hotshoe-", self._path)
        try:
            with os.fdopen(written, "wb") as out:
                out.write(header)
                for name, tensor in tensors.items():
                    out.seek(begins[name])
                    out.write(_bytes_of(tensor))
                out.truncate(size)
                out.flush()
                os.fsync(out.fileno())  # a name must not outlast what it names
            Path(path).replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(path).unlink()
            raise
        self._used.add(file.name)
        self._free -= size

    def _open(self) -> None:
        """Make the folder, and see whose it is.

        Raises:
            ConfigError: It cannot be made, or somebody else may write to it.
        """
        if self._counted_s is not None:
            return
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{NAME} {self._path}: {error.strerror}; name another") from None
        own = not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
        if not own or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"{NAME} {self._path}: others may write to it, who could change weights; use a "
                "folder of your own that nobody else can write to (chmod go-w)"
            )
        self._count()

    def _count(self) -> None:
        """Find out how much room there is, and which entries could give theirs."""
        self._others, self._free = [], self._max_bytes
        for entry in os.scandir(self._path):
            if ENTRY.match(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    self._free -= facts.st_size
                    if entry.name not in self._used:
                        self._others.append((facts.st_mtime, facts.st_size, Path(entry.path)))
        self._others.sort(reverse=True)
        self._counted_s = time.monotonic()

    def _make_room(self, size: int) -> bool:
        """Let entries go that nobody used for longest; False where that is not enough."""
        if self._counted_s is None or time.monotonic() - self._counted_s > COUNT_S:
            self._count()
        while self._free < size and self._others:
            _, freed, file = self._others.pop()
            if file.name not in self._used:
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
                self._free += freed
        if self._free < size:
            self._stop(f"quantization_cache_bytes is {self._max_bytes}")
        return self._free >= size

    def _stop(self, why: str) -> None:
        self._is_full = True
        _log.warning(
            "not all quantized weights are kept in %s, the next start makes the others again: %s",
            *(self._path, why),
        )

    def _file(self, digest: str) -> Path:
        return self._path / f"{digest}{SUFFIX}"


def kept_files(folder: Path) -> list[Path]:
    """Return the entries in a folder.

    Raises:
        ConfigError: There are none.
    """
    with contextlib.suppress(OSError):
        found = [path for path in folder.iterdir() if ENTRY.match(path.name)]
        if whole := sorted(path for path in found if path.suffix == SUFFIX):
            return whole
    raise ConfigError(
        f"{NAME} {folder} has no quantized weights; start an engine with it and --quantization "
        "first, or leave it out"
    )


class KeptFormat(WrappedFormat):
    """A `WeightFormat` whose results are kept.

    Args:
        inner: What quantizes.
        folder: Where its results are.
    """

    def __init__(self, inner: CostlyFormat, folder: KeptFolder) -> None:
        super().__init__(inner)
        self._recipe, self._folder = inner.recipe, folder

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Return what was kept, or what the format makes; tensors that it leaves are not kept."""
        recipe = self._recipe(layer)
        if recipe is None or any(t.device != HOST for parts in tensors.values() for t in parts):
            return self._inner.canonical(layer, tensors)
        digest = digest_of(recipe, tensors)
        found = self._folder.find(digest)
        if found is None:
            whole = self._inner.canonical(layer, tensors)
            found = {k: list(v) for k, v in whole.items() if v is not tensors.get(k)}
            self._folder.keep(digest, found)
        return dict(tensors) | found


def kept_format(made: WeightFormat, name: str, config: EngineConfig) -> WeightFormat:
    """Return a format whose results are kept where the configuration says.

    Raises:
        ConfigError: It has none that are worth it.
    """
    if not isinstance(made, CostlyFormat):
        raise ConfigError(
            f"{NAME} keeps nothing of {name}, which takes no time worth keeping; "
            "leave it out, or choose another method, such as int4"
        )
    assert config.quantization_cache_dir is not None
    path = Path(config.quantization_cache_dir).expanduser().absolute()
    return KeptFormat(made, KeptFolder(path, config.quantization_cache_bytes))


def digest_of(recipe: str, tensors: Pieces) -> str:
    """Return the key of what a recipe makes of tensors.

    Code for other processors, and of other versions of PyTorch, may round in other ways.
    """
    code = torch.__version__, torch.backends.cpu.get_cpu_capability()
    forms = [(k, str(t.dtype), tuple(t.shape)) for k in sorted(tensors) for t in tensors[k]]
    digest = hashlib.sha256(ascii([VERSION, recipe, code, forms]).encode())
    views = [_bytes_of(tensor) for name in sorted(tensors) for tensor in tensors[name]]
    spans = [view[at : at + SPAN] for view in views for at in range(0, len(view), SPAN)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as pool:
        for found in pool.map(lambda span: hashlib.sha256(span).digest(), spans):
            digest.update(found)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def _packed(made: Pieces) -> dict[str, Tensor]:
    """Return tensors by name and number, those of integers of four bits packed."""
    found = {}
    for name, parts in made.items():
        for number, part in enumerate(p.to(HOST) for p in parts):
            if part.dtype == torch.int8 and _is_four_bits(part):
                flat = part.contiguous().view(-1, 2).view(torch.uint8)
                found[f"{name}/{number}{HALVES}"] = (flat[:, 0] | flat[:, 1] << 4).view(
                    *part.shape[:-1], -1
                )
            else:
                found[f"{name}/{number}"] = part
    return found


def _is_four_bits(part: Tensor) -> bool:
    if part.dim() == 0 or part.numel() == 0 or part.shape[-1] % 2:
        return False
    low, high = part.aminmax()
    return bool(low >= 0) and bool(high < 16)


def _read(file: SafetensorsFile) -> dict[str, list[Tensor]]:
    """Return tensors of an entry, in memory of their own.

    Raises:
        ValueError: They are not numbered as those of an entry.
    """
    found: dict[str, list[Tensor]] = {}
    for full in file.names():
        name, _, number = full.partition("/")
        parts = found.setdefault(name, [])
        if number.removesuffix(HALVES) != str(len(parts)):
            raise ValueError(f"{full} is out of order")
        tensor = file.tensor(full)
        if number.endswith(HALVES):
            tensor = torch.stack((tensor & 15, tensor >> 4), -1).flatten(-2).view(torch.int8)
        else:
            tensor = tensor.clone()
        parts.append(tensor)
    return found
