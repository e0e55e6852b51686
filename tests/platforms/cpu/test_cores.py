"""Threads and cores, decided on machines laid out in a directory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_cpu.cores import (
    CorePlan,
    affinity,
    parse_list,
    part_of,
    physical_cores,
    plan_cores,
)


def lay_out(root: Path, siblings: dict[int, str], nodes: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    for node, text in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
    return root


def decide(
    threads: int | None, cores: tuple[int, ...], allowed: set[int], root: Path
) -> tuple[int, tuple[int, ...]]:
    plan = plan_cores(threads, cores, allowed, root)
    return plan.threads, plan.cores


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Four cores of two threads each; memory node 0 has the odd cores."""
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    return lay_out(tmp_path, siblings, {0: "1,3,5,7", 1: "0,2,4,6"})


def test_one_thread_per_core_node_by_node(machine: Path) -> None:
    plan = plan_cores(allowed=set(range(8)), root=machine)
    assert plan == CorePlan(4, (1, 3, 0, 2), "4 physical cores")


def test_affinity_leaves_single_siblings(machine: Path) -> None:
    assert physical_cores({0, 4, 5, 7}, machine) == (5, 7, 0)


def test_quota_limits_and_unbinds(machine: Path) -> None:
    (machine / "proc/self").mkdir(parents=True)
    (machine / "proc/self/cgroup").write_text("0::/\n")
    (machine / "sys/fs/cgroup").mkdir(parents=True)
    quota = machine / "sys/fs/cgroup/cpu.max"
    quota.write_text("250000 100000")
    assert decide(None, (), set(range(8)), machine) == (2, ())
    quota.write_text("30000 100000")
    assert decide(None, (), set(range(8)), machine) == (1, ())
    quota.write_text("900000 100000")
    assert plan_cores(allowed=set(range(8)), root=machine).threads == 4


def test_the_users_choice(machine: Path) -> None:
    everything = set(range(8))
    assert decide(2, (), everything, machine) == (2, ())
    assert decide(4, (), everything, machine) == (4, (1, 3, 0, 2))
    assert decide(6, (), everything, machine) == (6, ())
    assert decide(None, (6, 2), everything, machine) == (2, (6, 2))


@pytest.mark.parametrize(
    ("threads", "cores", "message"),
    [
        (9, (), "9 threads exceed the 8 processors"),
        (None, (7, 8), r"processors \[8\] are not among those allowed"),
        (3, (0, 1), "3 threads contradict 2 cores"),
    ],
)
def test_impossible_choices(
    machine: Path, threads: int | None, cores: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_cores(threads, cores, set(range(8)), machine)


def test_without_topology(tmp_path: Path) -> None:
    assert decide(None, (), {2, 5}, tmp_path) == (2, (2, 5))


def test_this_machine() -> None:
    plan = plan_cores()
    assert 1 <= plan.threads <= len(affinity())
    assert set(plan.cores) <= affinity()


@pytest.mark.parametrize(
    ("text", "numbers"), [("", ()), ("3", (3,)), ("0-2,8\n", (0, 1, 2, 8)), ("5,1", (5, 1))]
)
def test_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1,,x"])
def test_bad_lists(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_list(text)


@pytest.mark.parametrize("text", ["3-1", "0-99999999999999", "65536"])
def test_ranges_of_no_processors(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no range of processors"):
        parse_list(text)


@given(st.integers(1, 40), st.integers(1, 8), st.booleans())
def test_parts_of_a_plan_are_disjoint_and_even(threads: int, size: int, bound: bool) -> None:
    cores = tuple(range(100, 100 + threads)) if bound else ()
    plan = CorePlan(threads, cores, "because")
    if threads < size:
        with pytest.raises(ValueError, match=rf"{size} workers cannot share {threads} threads"):
            part_of(plan, 0, size)
        return
    parts = [part_of(plan, rank, size) for rank in range(size)]
    assert sum(part.threads for part in parts) == threads
    assert max(p.threads for p in parts) - min(p.threads for p in parts) <= 1
    assert tuple(core for part in parts for core in part.cores) == cores
    assert all(len(part.cores) in (0, part.threads) for part in parts)
