"""The memory of the host, the part of it that a process may use, and garbage."""

import gc
import weakref

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


class Cyclic:
    def __init__(self) -> None:
        self.own = self


def test_garbage_goes_before_and_waits_meanwhile() -> None:
    before = weakref.ref(Cyclic())
    with host.uncollected():
        assert before() is None
        assert not gc.isenabled()
        with host.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_is_looked_for_again_behind_a_failure() -> None:
    with pytest.raises(RuntimeError), host.uncollected():
        raise RuntimeError
    assert gc.isenabled()
