"""The memory of the host, and the part of it that a process may use."""

import pytest

from hotshoe import host


@pytest.mark.parametrize(("limit", "granted"), [("4096\n", 4096), ("max\n", None), (None, None)])
def test_a_control_group_may_grant_less(monkeypatch, tmp_path, limit, granted) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(host, "CGROUP_LIMIT", file)
    assert host.physical_memory() > 2**20
    assert host.granted_memory() == (granted or host.physical_memory())
