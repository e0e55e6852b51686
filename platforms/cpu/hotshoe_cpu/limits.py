"""What the machine and its control groups grant this process: memory and processor time.

Reads Linux's /proc and /sys (control groups of both versions); elsewhere only the machine's own
memory is known. Called by the platform at start-up; `root` lets tests lay out a machine in a
directory.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """Return the memory that this process could ever have."""
    limits = [limit for limit, _ in _group_memory(root)]
    return min([_meminfo(root, "MemTotal"), *limits])


def free_memory_bytes(root: Path = ROOT) -> int:
    """Return the memory that this process can still take without swapping or being killed."""
    left = [limit - used for limit, used in _group_memory(root)]
    return max(0, min([_meminfo(root, "MemAvailable"), *left]))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many processors' time the control groups grant, None without a limit."""
    quotas = [quota / period for quota, period in _group_quotas(root) if quota > 0]
    return min(quotas, default=None)


def _meminfo(root: Path, key: str) -> int:
    text = _read(root / "proc/meminfo")
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_memory(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) of every group with a limit; cache that can be dropped is not used."""
    names = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit_name, used_name, droppable_name in names:
        for group in _groups(root, controller):
            limit, used = _read(group / limit_name), _read(group / used_name)
            if limit is None or used is None or limit == "max":
                continue
            stat = dict(line.split() for line in (_read(group / "memory.stat") or "").splitlines())
            yield int(limit), int(used) - int(stat.get(droppable_name, 0))


def _group_quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (quota, period) in microseconds of every group with a limit."""
    for group in _groups(root, ""):
        quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
        if quota != "max":
            yield int(quota), int(period)
    for group in _groups(root, "cpu"):
        old_quota, old_period = (
            _read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        if old_quota is not None and old_period is not None:
            yield int(old_quota), int(old_period)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's group of a controller ("" is version 2) and all groups above it."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        # Beside version 1, version 2 is mounted as "unified"; "cpu" may be part of "cpu,cpuacct".
        for mount in (controllers, controller or "unified"):
            base = root / "sys/fs/cgroup" / mount
            group = base / path.lstrip("/")
            yield from (p for p in (group, *group.parents) if p.is_relative_to(base))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
