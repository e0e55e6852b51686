"""What starts on GPUs have in common and need no device for, so that a process can do it ahead."""

from __future__ import annotations

import importlib
import sys

from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from hotshoe_triton.compiling import settle
from hotshoe_triton.rehearsal import OWN

#: Imported when an engine takes its device, or first records a step.
MODULES = ("hotshoe_triton.compiled", "hotshoe_triton.memory", "hotshoe_triton.rehearsal")


def prepare() -> None:
    """Import what engines need, and give kernels their keys.

    A key has the source of all that a kernel calls, and a digest of Triton itself, which reads
    400 MB.
    """
    for name in MODULES:
        importlib.import_module(name)
    triton_key()
    for module in [m for name, m in sys.modules.items() if name.startswith(OWN)]:
        for found in list(vars(module).values()):
            if isinstance(found, JITFunction):
                settle(found)
