"""The memory of the host, the part of it that a process may use, and garbage."""

import gc
import resource
import subprocess
import sys
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


def test_a_process_may_hold_as_many_files_as_the_system_allows() -> None:
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
    try:
        host.allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))


MADE_MEANWHILE = """
import gc
from hotshoe import host
def is_old():
    return any(one is made for one in gc.get_objects(generation=2))
with host.uncollected():
    made = [[]]
    assert not is_old()
assert is_old() and not gc.get_freeze_count()
host.freeze()
frozen = gc.get_freeze_count()
with host.uncollected():
    pass
assert gc.get_freeze_count() == frozen, "forks of a keeper share it"
later = [[]]
host.leave_garbage()
assert gc.get_freeze_count() == frozen, "others use this process"
host.end_with_command()
host.leave_garbage()
assert gc.get_freeze_count() > frozen
"""


def test_what_was_made_meanwhile_counts_as_old() -> None:
    """In a process of its own, as objects of tests are frozen."""
    subprocess.run([sys.executable, "-c", MADE_MEANWHILE], check=True)
