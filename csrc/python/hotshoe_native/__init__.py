"""Hotshoe's C++ kernels: find what this CPU can run and load it.

`available()` says which builds exist and why one cannot be used; `load()` hands back the
extension module of the best one. The kernels take pointers as integers, so this package
needs neither PyTorch nor numpy. Called by the CPU platform.
"""

import importlib
import platform
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from hotshoe_native._isa import ISAS, Isa
from hotshoe_native._limits import MAX_INT8_K, MAX_RANKS

__all__ = ["MAX_INT8_K", "MAX_RANKS", "IsaStatus", "available", "load"]


class IsaStatus(NamedTuple):
    """What `available` found for one instruction set.

    Attributes:
        isa: Name to give to `load`.
        usable: True when this CPU and this installation can run it.
        reason: One phrase that says why (not).
    """

    isa: str
    usable: bool
    reason: str


@cache
def _cpu_features() -> frozenset[str]:
    """Feature words of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _status(isa: Isa) -> IsaStatus:
    if isa.machines and platform.machine() not in isa.machines:
        return IsaStatus(isa.name, False, f"not for {platform.machine()} processors")
    missing = [feature for feature in isa.features if feature not in _cpu_features()]
    if missing:
        return IsaStatus(isa.name, False, f"the CPU lacks {', '.join(missing)}")
    try:
        importlib.import_module(f"hotshoe_native._{isa.name}")
    except ModuleNotFoundError:
        return IsaStatus(isa.name, False, "not built in this installation")
    except ImportError as error:
        return IsaStatus(isa.name, False, str(error))
    return IsaStatus(isa.name, True, "ready")


def available() -> list[IsaStatus]:
    """List every instruction set, worst first, with whether it can run here and why not."""
    return [_status(isa) for isa in ISAS]


def load(isa: str | None = None) -> ModuleType:
    """Import the kernels of one instruction set.

    Args:
        isa: A name that `available` lists; None takes the best usable one.

    Returns:
        The extension module; `module.info()` says what was loaded.

    Raises:
        ValueError: The name is unknown, or that build cannot run here; lists the choices.
        ImportError: No build can run here.
    """
    if isa is None:
        best = next((s for s in map(_status, _defaults_best_first()) if s.usable), None)
        if best is None:
            raise ImportError(f"no build of the native kernels can run here: {_listing()}")
        return importlib.import_module(f"hotshoe_native._{best.isa}")
    entry = next((entry for entry in ISAS if entry.name == isa), None)
    if entry is None:
        raise ValueError(f"unknown instruction set {isa!r}; choices: {_listing()}")
    status = _status(entry)
    if not status.usable:
        raise ValueError(f"cannot load {isa!r}: {status.reason}; choices: {_listing()}")
    return importlib.import_module(f"hotshoe_native._{isa}")


def _defaults_best_first() -> list[Isa]:
    return [isa for isa in reversed(ISAS) if isa.default]


def _listing() -> str:
    return "; ".join(f"{s.isa} ({s.reason})" for s in available())
