"""Memory that a device grants: what it was for when there is no more, and what needs none; and
devices that PyTorch does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hotshoe.errors import MemoryLimitError, PlatformError
from hotshoe.foreign import cause_of
from hotshoe.layers import BuildContext

#: Ordinary memory that was not granted is no `torch.OutOfMemoryError`, but says this.
HOST_WORDS = "can't allocate memory"
#: And page-locked memory this, behind the name of the device's runtime.
LOCKED_WORDS = "error: out of memory"
#: Of the device's words: that it is out of memory, how much was asked for, and how much was free.
OWN_SENTENCES = 3


def check_device(platform: str, device: str) -> None:
    """Refuse a device that PyTorch does not know.

    Raises:
        PlatformError: Tensors cannot be placed there.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PlatformError(
            f"platform {platform}: PyTorch places no tensors on the device {device!r} of its "
            f"facts: {cause_of(error)}"
        ) from error


@contextmanager
def enough_memory(purpose: str) -> Iterator[None]:
    """Say of memory that has run out what it was for.

    Raises:
        MemoryLimitError: It has; the device's own words are in it.
    """
    try:
        yield
    except RuntimeError as error:
        _, known, rest = str(error).rpartition(HOST_WORDS)
        own = isinstance(error, torch.OutOfMemoryError) or LOCKED_WORDS in str(error)
        if not (known or own):
            raise
        said = ". ".join((known + rest).split(". ")[:OWN_SENTENCES])
        raise MemoryLimitError(
            f"the device has too little memory to {purpose} ({said}); "
            "free some, or lower --kv-cache-memory-bytes, --max-num-batched-tokens or "
            "--max-num-seqs"
        ) from error


def stay_in_files(load_format: str, dtype: str, ctx: BuildContext) -> bool:
    """Tell whether tables that files hold in a type are the files' own pages, which take no
    memory for good."""
    read = torch.empty(0, dtype=getattr(torch, dtype))
    kept = read.to(ctx.device, ctx.torch_dtype) is read  # as layers take what was read
    return kept and load_format != "dummy"
