"""What starts on GPUs have in common and need no device for, so that a process can do it ahead."""

from __future__ import annotations

import importlib
from threading import Thread

from triton.runtime.cache import triton_key

from hotshoe_triton.compiling import settle_all

#: Imported when an engine takes its device, or first samples.
MODULES = (
    "hotshoe_triton.compiled",
    "hotshoe_triton.kernels.sampling",
    "hotshoe_triton.kernels.shortlist",
    "hotshoe_triton.memory",
    "hotshoe_triton.rehearsal",
)


def prepare() -> None:
    """Import what engines need, and give kernels their keys.

    A key has the source of all that a kernel calls, and a digest of Triton itself.
    """
    for name in MODULES:
        importlib.import_module(name)
    triton_key()
    settle_all()


def begin() -> None:
    """Make the digest of Triton, which reads 400 MB, beside what a start does until then."""
    Thread(target=triton_key, name="hotshoe-triton", daemon=True).start()
