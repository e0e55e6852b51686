"""Starts processes of ours, each with a private channel to its owner.

They live as long as the owner wants: an interrupt from the keyboard is the owner's affair, so it
never reaches them. That they end with the owner is their own doing, by the end of the channel; one
that is stopped could not see it. So each has a process group of its own in the owner's session:
when the owner is gone, nobody in that session could let the group go on, and then the system does
so itself, with SIGHUP and SIGCONT.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence

_STDERR = 2
#: What may be the cause where the system lets no process start.
LIMITS = "the system's limits on processes, open files or memory may be reached"
#: What must never end or stop them: keys, the system's SIGHUP from above, and that they write to a
#: terminal of which they are a background job, where its owner has asked for that (`stty tostop`).
BLOCKED = (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU)


def spawn(
    command: Sequence[str],
    arguments: Sequence[str] = (),
    *,
    fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it and the owner's end of the channel.

    Args:
        command: Followed by the number of the channel's other end.
        arguments: Come after that number.
        fds: Further descriptors that the process gets.
        stdin: As for `Popen`.
    """
    ours, theirs = socket.socketpair()
    # A process starts with its parent's mask: so not even its first moments can be interrupted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), *arguments],
                stdin=stdin,
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
