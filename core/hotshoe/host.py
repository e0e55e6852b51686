"""The memory of the host that this process runs on."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def physical_memory() -> int:
    """Return the bytes of memory that the host has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def granted_memory() -> int:
    """Return the bytes that this process may use: all, or what its control group allows."""
    total = physical_memory()
    try:
        limit = CGROUP_LIMIT.read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
