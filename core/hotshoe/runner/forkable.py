"""Whether a process can be forked: it has one thread, and no device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hotshoe.layers.weights import HOST


def hindrance(device: str | None) -> str:
    """Return why this process cannot be forked, "" if it can.

    Libraries that can be forked end their threads when that happens. So one fork tells which stay.

    Args:
        device: That engines would take; None if nobody knows.
    """
    if device is not None and torch.device(device) != HOST:
        taken = getattr(torch.get_device_module(torch.device(device)), "is_initialized", bool)
        if taken():
            return f"device {device} is in use"
    if (child := os.fork()) == 0:
        os._exit(0)
    try:
        os.close(os.pidfd_open(child))
    except OSError as error:
        return f"the system does not tell how a process ends (pidfd_open: {error.strerror})"
    finally:
        os.waitpid(child, 0)
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text(encoding="utf-8").strip() for task in tasks]
    return "" if len(names) == 1 else f"threads run in it: {', '.join(sorted(names))}"
