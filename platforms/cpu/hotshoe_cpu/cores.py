"""Which cores the kernels' threads run on: one thread per physical core, node by node.

Decided once from the affinity mask, the control group's quota and the topology that Linux
reports under /sys; elsewhere every processor counts as a core. Called by the platform.
"""

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from hotshoe_cpu.limits import ROOT, cpu_quota

#: No machine has processors of such numbers; Linux knows 8,192 at most.
MAX_PROCESSORS = 1 << 16


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The decision.

    Attributes:
        threads: Threads that the kernels use, the caller's included.
        cores: The core of each thread; empty leaves them to the operating system.
        reason: How the number was found.
    """

    threads: int
    cores: tuple[int, ...]
    reason: str


def plan_cores(
    threads: int | None = None,
    cores: tuple[int, ...] = (),
    allowed: AbstractSet[int] | None = None,
    root: Path = ROOT,
) -> CorePlan:
    """Decide on threads and cores.

    Threads are bound where they fill every core that this process may use, or where cores are
    named; with fewer threads, other processes may have the same idea, so none is bound.

    Args:
        threads: As the user wants; None decides.
        cores: As the user wants, one for each thread; empty decides.
        allowed: Processors that this process may use; default: its affinity mask.
        root: Where /sys lies.

    Raises:
        ValueError: More threads than processors, or processors that are not allowed.
    """
    allowed = affinity() if allowed is None else allowed
    if cores:
        if foreign := sorted(set(cores) - allowed):
            raise ValueError(f"processors {foreign} are not among those allowed: {sorted(allowed)}")
        if threads not in (None, len(cores)):
            raise ValueError(f"{threads} threads contradict {len(cores)} cores")
        return CorePlan(len(cores), cores, "cores as given")
    physical = physical_cores(allowed, root)
    if threads is not None:
        if threads > len(allowed):
            raise ValueError(f"{threads} threads exceed the {len(allowed)} processors allowed here")
        count, reason = threads, "threads as given"
    else:
        count, reason = len(physical), f"{len(physical)} physical cores"
        quota = cpu_quota(root)
        if quota is not None and quota < count:
            count, reason = max(1, int(quota)), f"the control group grants {quota:g} processors"
    return CorePlan(count, physical if count == len(physical) else (), reason)


def part_of(plan: CorePlan, rank: int, size: int) -> CorePlan:
    """Divide a plan's threads among workers, each near one memory node as far as that goes.

    Raises:
        ValueError: There are fewer threads than workers.
    """
    if plan.threads < size:
        raise ValueError(f"{size} workers cannot share {plan.threads} threads ({plan.reason})")
    first, last = plan.threads * rank // size, plan.threads * (rank + 1) // size
    reason = f"part {rank + 1} of {size}: {plan.reason}" if size > 1 else plan.reason
    return CorePlan(last - first, plan.cores[first:last], reason)


def affinity() -> frozenset[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(allowed: AbstractSet[int], root: Path = ROOT) -> tuple[int, ...]:
    """Return one allowed processor of each physical core, memory node after memory node."""
    nodes = _nodes(root)
    siblings: dict[frozenset[int], int] = {}
    for cpu in sorted(allowed):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        listed = parse_list(topology.read_text()) if topology.exists() else (cpu,)
        siblings.setdefault(frozenset(listed), cpu)
    return tuple(sorted(siblings.values(), key=lambda cpu: (nodes.get(cpu, 0), cpu)))


def _nodes(root: Path) -> dict[int, int]:
    """Map processors to memory nodes."""
    found = {}
    for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist"):
        node = int(path.parent.name.removeprefix("node"))
        found.update(dict.fromkeys(parse_list(path.read_text()), node))
    return found


def parse_list(text: str) -> tuple[int, ...]:
    """Parse a list such as `0-3,8`.

    Raises:
        ValueError: It is not such a list.
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        begin, end = int(first), int(last if dash else first)
        if not begin <= end < MAX_PROCESSORS:
            raise ValueError(f"{part!r} is no range of processors")
        numbers.extend(range(begin, end + 1))
    return tuple(numbers)
