"""Memory and processor limits, read from machines laid out in a directory."""

from pathlib import Path

import pytest

from hotshoe_cpu.limits import cpu_quota, free_memory_bytes, memory_bytes

KIB = 1024
V1_UNLIMITED = 2**63 - 4096


def lay_out(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n"} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {})
    assert memory_bytes(root) == 1000 * KIB
    assert free_memory_bytes(root) == 600 * KIB
    assert cpu_quota(root) is None


def test_version_2_takes_the_tightest_group_above(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/a/b"
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "5\n",
            f"{group}/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/a/memory.max": f"{500 * KIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{300 * KIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 3\ninactive_file {50 * KIB}\n",
            "sys/fs/cgroup/a/cpu.max": "max 100000\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
        },
    )
    assert memory_bytes(root) == 500 * KIB
    assert free_memory_bytes(root) == (500 - 300 + 50) * KIB
    assert cpu_quota(root) == 1.5


@pytest.mark.parametrize("path", ["/docker/x", "/"])
def test_version_1_in_a_container_that_sees_only_its_mount(tmp_path: Path, path: str) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:{path}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{400 * KIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{390 * KIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {20 * KIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert memory_bytes(root) == 400 * KIB
    assert free_memory_bytes(root) == 30 * KIB
    assert cpu_quota(root) == 0.5


def test_version_1_without_limits(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{V1_UNLIMITED}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "10\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert memory_bytes(root) == 1000 * KIB
    assert free_memory_bytes(root) == 600 * KIB
    assert cpu_quota(root) is None


def test_version_2_beside_version_1(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/u\n",
            "sys/fs/cgroup/unified/u/cpu.max": "200000 100000\n",
        },
    )
    assert cpu_quota(root) == 2.0


def test_an_overdrawn_group_has_nothing_left(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "120\n",
        },
    )
    assert free_memory_bytes(root) == 0


def test_this_machine() -> None:
    assert 0 < free_memory_bytes() <= memory_bytes()
