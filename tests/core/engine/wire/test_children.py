"""Child processes: the channel, signals, how each is ended, and how it sees its owner's end."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hotshoe.engine.wire.children import ChildProcess, Times

TIMES = Times(leave_s=60.0, stacks_s=60.0, killed_s=60.0)
ECHO = """
import os, signal, sys
from hotshoe.engine.wire.children import channel_to_owner, when_orphaned
owner = channel_to_owner()
owner.send(owner.fetch() + sys.argv[2].encode())
os.kill(os.getpid(), signal.SIGINT)
owner.send(b"alive")
owner.fetch()
"""
#: Serves nobody: hears of its owner's end in the thread that watches alone.
DEAF = """
import os, signal, sys, time
from hotshoe.engine.wire.children import channel_to_owner, when_orphaned
owner = channel_to_owner()
when_orphaned(owner, lambda: os._exit(7))
for number in map(int, sys.argv[2:]):
    signal.signal(number, signal.SIG_IGN)
owner.send(b"%d" % os.getpid())
time.sleep(3600)
"""


def start(code: str, *arguments: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], arguments)


@pytest.fixture
def deaf() -> Iterator[ChildProcess]:
    child = start(DEAF)
    assert child.connection.fetch(60) == str(child.pid).encode()
    yield child
    child.kill()
    child.connection.close()


def test_it_talks_and_is_not_interrupted() -> None:
    child = start(ECHO, "more")
    child.process.send_signal(signal.SIGINT)  # in its very first moment
    child.connection.send(b"hello ")
    assert [child.connection.fetch(60) for _ in range(2)] == [b"hello more", b"alive"]
    assert child.code is None
    child.connection.close()
    assert child.wait(60) and child.code == 0


def test_the_owner_can_still_be_interrupted() -> None:
    child = start("pass")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert child.wait(60) and child.code == 0
    child.connection.close()


def test_what_is_said_to_it_does_not_look_like_its_owners_end(deaf: ChildProcess) -> None:
    deaf.connection.send(b"unread")
    assert not deaf.wait(0.1) and deaf.code is None
    deaf.connection.close()
    assert deaf.wait(60) and deaf.code == 7


def test_another_parent_is_its_owners_end_even_where_the_channel_stays() -> None:
    """As where a process that the owner has forked holds the channel."""
    code = f"""
import os, sys
from hotshoe.engine.wire.children import ChildProcess
child = ChildProcess([sys.executable, "-c", {DEAF!r}])
print(child.connection.fetch(60).decode(), flush=True)
if os.fork() == 0:
    sys.stdin.read()  # holds the channel for as long as the test wants
os._exit(0)
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        watcher = os.pidfd_open(int(owner.stdout.readline()))
        owner.wait(60)
        try:
            assert select.select([watcher], [], [], 60)[0]  # which can be read once it has ended
        finally:
            os.close(watcher)


@pytest.mark.parametrize(("ignored", "code"), [([], signal.SIGTERM), ([15], signal.SIGKILL)])
def test_it_is_ended_politely_and_then_by_force(ignored: list[int], code: int) -> None:
    child = start(DEAF, *map(str, ignored))
    child.connection.fetch(60)
    child.stop(Times(leave_s=0.1 if ignored else 60.0, killed_s=60.0))
    assert child.code == -code
    child.stop(TIMES)
    child.kill()
    child.connection.close()


def test_one_that_is_stuck_is_asked_for_its_stacks(deaf: ChildProcess) -> None:
    deaf.abort(TIMES)
    assert deaf.code == -signal.SIGABRT
