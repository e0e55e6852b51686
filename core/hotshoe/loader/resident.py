"""Keeps files of weights in the host's memory, so that an engine that starts finds them there.

Engines map the files of a checkpoint. Their pages are the system's own, which shares them between
processes and gives them up when other things need memory. Locked pages stay. So nothing is copied,
and an engine cannot be given pages of another file, or of one that has changed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotshoe.errors import CheckpointError, ConfigError, MemoryLimitError
from hotshoe.host import allow_open_files
from hotshoe.loader.files import checkpoint_files
from hotshoe.models.files import open_regular

GIB = 2**30


class ResidentFiles:
    """Files whose pages stay in memory as long as this lives, or until `close`.

    Args:
        files: Not empty.
        max_bytes: Most that they may take.

    Raises:
        CheckpointError: A file cannot be read.
        MemoryLimitError: They take more, or more than the system lets this process lock.
        ConfigError: The system locks no pages.
    """

    def __init__(self, files: Sequence[Path], max_bytes: int) -> None:
        self._pages: list[mmap.mmap] = []
        allow_open_files()  # each map holds one
        opened = [open_regular(path) for path in files]
        try:
            sizes = [os.fstat(file.fileno()).st_size for file in opened]
            self.num_bytes = sum(sizes)
            if self.num_bytes > max_bytes:
                raise MemoryLimitError(
                    f"the {len(files)} files of weights take {self.num_bytes / GIB:.2f} GiB, more "
                    f"than {max_bytes / GIB:.2f} GiB; raise --max-memory-bytes"
                )
            for path, file, size in zip(files, opened, sizes, strict=True):
                if not size:
                    raise CheckpointError(f"{path} is empty; fetch it again")
                pages = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
                self._pages.append(pages)
                _lock(pages, size)
        except BaseException:
            self.close()
            raise
        finally:
            for file in opened:
                file.close()

    @property
    def size(self) -> str:
        """How much they take, for people."""
        return f"{self.num_bytes / GIB:.2f} GiB"

    def close(self) -> None:
        """Let the system give the pages up."""
        while self._pages:
            self._pages.pop().close()


def weight_files(path: Path) -> list[Path]:
    """Return the files of a model's weights: of a directory, or the file that is the model.

    Raises:
        CheckpointError: None there, or one is missing.
    """
    if not path.exists():
        raise CheckpointError(f"no model at {path}; give its directory, its file, or a name")
    return [path] if path.is_file() else checkpoint_files(path)


def _lock(pages: mmap.mmap, size: int) -> None:
    """Read pages and keep them.

    Raises:
        MemoryLimitError: The system does not let this process keep so many.
        ConfigError: It has no such call.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "mlock", None)
    if call is None:
        raise ConfigError("this system keeps no pages in memory (mlock); start without preload")
    # An array over the pages knows their address. It goes at once: a map with one cannot be closed.
    address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    if call(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        raise MemoryLimitError(
            f"the system keeps no {size / GIB:.2f} GiB in memory for this process "
            f"({os.strerror(ctypes.get_errno())}); raise the limit on locked memory (ulimit -l, "
            "LimitMEMLOCK in a unit, memlock of a container), or free memory"
        )
