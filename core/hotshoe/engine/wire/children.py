"""Child processes of ours: how an owner starts, watches and ends one, and how it sees its owner.

Each has a private channel to its owner. It lives as long as the owner wants: an interrupt from the
keyboard is the owner's affair, so it never reaches a child. A child ends when its owner has gone,
which it sees by the channel's end; one that is stopped could not see it. So each has a process
group of its own in the owner's session: when the owner is gone, nobody in that session could let
the group go on, and then the system does so itself, with SIGHUP and SIGCONT.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.spares import (
    Process,
    Spare,
    drop_spares,
    keep_spare,
    module_of,
    num_spares,
    take_spare,
)

_STDERR = 2
_PYTHON = (sys.executable, "-P", "-X", "faulthandler", "-m")
#: Start an engine process, and a rank. They lie here, as processes start before much is imported.
ENGINE_COMMAND = (*_PYTHON, "hotshoe.engine.transport.child")
RANK_COMMAND = (*_PYTHON, "hotshoe.engine.ranks.rank")
#: What may be the cause where the system lets no process start.
LIMITS = "the system's limits on processes, open files or memory may be reached"
#: What must never end or stop them: keys, the system's SIGHUP from above, and that they write to a
#: terminal of which they are a background job, where its owner has asked for that (`stty tostop`).
BLOCKED = (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU)
#: A child looks so often whether it has another parent, as a process that its owner has forked may
#: hold the other end of the channel.
PARENT_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long an owner waits for one kind of child; 0 where an option says so, or nobody waits.

    Attributes:
        start_s: From its start until it is ready.
        beat_s: Between two signs of life that it gives.
        silent_s: The longest time without a sign of life; then it counts as stuck.
        look_s: Between two looks of the owner.
        leave_s: For its end in good order, after it was asked to end.
        exit_s: For its end, after it has closed its channel.
        killed_s: For its end, after it was killed: the kernel may hold it.
        stacks_s: Until a stuck one has printed where its threads are, before it is killed.
        pause_s: Before another one is started, longer by as much each time.
        max_pause_s: The longest of these pauses.
        orphan_s: For its end in good order, after its owner has gone.
    """

    start_s: float = 0.0
    beat_s: float = 0.0
    silent_s: float = 0.0
    look_s: float = 0.2
    leave_s: float = 0.0
    exit_s: float = 1.0
    killed_s: float = 4.0
    stacks_s: float = 0.0
    pause_s: float = 0.0
    max_pause_s: float = 0.0
    orphan_s: float = 0.0


#: An engine process; `engine_stall_timeout_s` limits its silence.
ENGINE = Times(
    beat_s=0.5, leave_s=5.0, exit_s=2.0, stacks_s=2.0, pause_s=0.5, max_pause_s=10.0, orphan_s=1.0
)
#: All ranks together; `load_timeout_s` limits their start, `engine_stall_timeout_s` their silence.
RANKS = Times(look_s=0.25, leave_s=4.0)


class ChildProcess:
    """A process of ours, as its owner has it.

    Args:
        command: Followed by the number of the channel's other end.
        arguments: Come after that number.
        fds: Further descriptors that the process gets.

    Raises:
        OSError: The system lets no process start.
    """

    def __init__(
        self, command: Sequence[str], arguments: Sequence[str] = (), fds: Sequence[int] = ()
    ) -> None:
        self.process: Process
        spare = None if fds else take_spare(command, arguments)
        if spare is None:
            self.process, ours = _start(command, arguments, fds)
        else:
            self.process, ours = spare.process, spare.channel
        self.connection = Connection(ours)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code, a signal's number as a negative one; None while it runs."""
        return self.process.poll()

    def wait(self, limit_s: float) -> bool:
        """Wait for its end; return whether it has ended."""
        return _ends_within(self.process, limit_s)

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it by force, with what it has started, as a compiler; no harm to one that ended."""
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)

    def abort(self, times: Times) -> None:
        """End one that is stuck, which prints its stacks first; one that is suspended does not."""
        self.process.send_signal(signal.SIGABRT)
        self.wait(times.stacks_s)
        self.kill()
        self.wait(times.killed_s)

    def stop(self, times: Times) -> None:
        """End it, politely at first."""
        if self.code is None:
            self.terminate()
            if not self.wait(times.leave_s):
                self.kill()
                self.wait(times.killed_s)


def _ends_within(process: Process, limit_s: float) -> bool:
    """Wait for the end of a process; return whether it has ended."""
    try:
        process.wait(limit_s)
    except (subprocess.TimeoutExpired, TimeoutError):
        return False
    return True


@contextmanager
def started_ahead(
    command: Sequence[str], imports: Sequence[str], number: int = 1
) -> Iterator[None]:
    """Start processes that import, while this one gets ready to have children.

    The first `ChildProcess`es of this command without descriptors are these processes. Those that
    are not wanted in the end are ended.

    Args:
        command: Of a child; it names a module with a function `main`.
        imports: Modules that it will need beside its own. One that cannot be imported is left out.
        number: How many children there will be.
    """
    module = module_of(command)
    waiting = [*command[: command.index("-m")], "-m", "hotshoe.engine.wire.waiting"]
    with suppress(OSError):  # who wants a child then starts one, and says why that fails
        for _ in range(number - num_spares(module)):  # a keeper may have forked one
            keep_spare(module, Spare(*_start(waiting, [module, *imports], ())))
    try:
        yield
    finally:
        for process in drop_spares(module):
            _ends_within(process, ENGINE.killed_s)


def _start(
    command: Sequence[str], arguments: Sequence[str], fds: Sequence[int]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process, and return it with the channel to it."""
    ours, theirs = socket.socketpair()
    # A process starts with its parent's mask: so not even its first moments can be interrupted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,  # what a command prints is its own
                pass_fds=[theirs.fileno(), *fds],
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, ours


def channel_to_owner() -> Connection:
    """Take the channel whose number is the first word of this process's command line."""
    return Connection(socket.socket(fileno=int(sys.argv[1])))


def when_orphaned(channel: Connection, act: Callable[[], object]) -> threading.Thread:
    """Do something, in a thread, when the owner has gone or let go of the channel."""

    def watch(owner: int) -> None:
        poll = select.poll()
        poll.register(channel, 0)  # the end alone: messages are another thread's
        while not poll.poll(1000 * PARENT_LOOK_S) and os.getppid() == owner:
            pass
        act()

    thread = threading.Thread(target=watch, args=[os.getppid()], name="hotshoe-owner", daemon=True)
    thread.start()
    return thread
