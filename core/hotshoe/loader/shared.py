"""Weights in shared memory: a file that other processes of this host and user read by its path.

The file has the safetensors format, so that names, shapes and types are checked before a value is
read. It has no name of its own where the system can do without: then it goes with its writer, even
one that is killed. Source of the format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.loader.safetensors import DTYPES
from hotshoe.loader.sources import Stream, Weights

NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Tensors begin at multiples of this many bytes.
ALIGNMENT = 64


@contextmanager
def shared_weights(weights: Weights) -> Iterator[str]:
    """Let others read weights while the context is open.

    Args:
        weights: Pairs of name and tensor are written to shared memory; of a path, nothing is.

    Yields:
        A path, to be given to `POST /update_weights` or `update_weights`.

    Raises:
        CheckpointError: A pair is none, or has a type that files cannot have.
        MemoryLimitError: There is too little memory for a copy.
    """
    if isinstance(weights, (str, Path)):
        yield str(Path(weights).absolute())
        return
    source = Stream(weights)
    tensors = {name: source.tensor(name) for name in source.names()}
    header, begin, size = layout(tensors)
    with ExitStack() as stack:
        file, path = _open(stack)
        try:
            os.posix_fallocate(file, 0, size)  # so that writing cannot fail later
        except OSError as error:
            raise MemoryLimitError(
                f"shared memory has no room for weights of {size / 2**20:.0f} MiB: "
                f"{error.strerror}; send fewer at a time, or a directory"
            ) from error
        target = mmap.mmap(file, size)
        target[: len(header)] = header
        for name, tensor in tensors.items():
            if tensor.numel():
                flat = torch.frombuffer(
                    target, dtype=tensor.dtype, offset=begin[name], count=tensor.numel()
                )
                flat.view(tensor.shape).copy_(tensor)
        yield path


def layout(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, int], int]:
    """Return the beginning of the file, where each tensor lies in it, and the file's size.

    Raises:
        CheckpointError: A tensor has a type that files cannot have.
    """
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise CheckpointError(f"{name} is of type {tensor.dtype}, which files cannot have")
        first, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [first, end],
        }
        end += -end % ALIGNMENT
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = 8 + len(text)
    places = {name: start + entry["data_offsets"][0] for name, entry in entries.items()}
    return len(text).to_bytes(8, "little") + text, places, start + end


def _open(stack: ExitStack) -> tuple[int, str]:
    """Open a file in memory, or a temporary one; return its descriptor and its path."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("hotshoe-weights", os.MFD_CLOEXEC)
        stack.callback(os.close, file)
        return file, f"/proc/{os.getpid()}/fd/{file}"
    file, path = tempfile.mkstemp(prefix="hotshoe-weights-")
    stack.callback(os.close, file)
    stack.callback(os.unlink, path)
    return file, path
