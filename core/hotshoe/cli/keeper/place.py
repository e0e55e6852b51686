"""Where keepers and those who ask them meet.

A socket's name has a digest of all that a process has from its start and cannot take over later:
the versions, the flags of Python, the environment, the namespaces and the like. So whoever finds a
keeper's socket would have started as the keeper has. Imports little: commands wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
import struct
import sys
from pathlib import Path

from hotshoe import __version__

#: Commands that import much, and so are worth a fork.
COMMANDS = ("bench latency", "bench throughput", "chat", "generate", "serve")
#: Variables that differ from terminal to terminal, and that no library reads while it is imported.
OF_A_TERMINAL = frozenset(
    "_ COLORTERM COLUMNS CONDA_PROMPT_MODIFIER CONDA_SHLVL DBUS_SESSION_BUS_ADDRESS DISPLAY EDITOR "
    "HISTFILE INVOCATION_ID JOURNAL_STREAM LESS LESSCLOSE LESSOPEN LINES LS_COLORS MAIL MOTD_SHOWN "
    "OLDPWD PAGER PATH PS1 PWD PYENV_DIR PYENV_HOOK_PATH PYENV_VERSION SHLVL SSH_AGENT_PID "
    "SSH_AUTH_SOCK SSH_CLIENT SSH_CONNECTION SSH_TTY STY SYSTEMD_EXEC_PID TERM TERM_PROGRAM "
    "TERM_PROGRAM_VERSION TMUX TMUX_PANE VIRTUAL_ENV VIRTUAL_ENV_PROMPT WINDOW XAUTHORITY "
    "XDG_SESSION_CLASS XDG_SESSION_ID XDG_SESSION_TYPE _PYENV_INSTALL_PREFIX".split()
)
SUFFIX = ".fork"


def folder() -> Path:
    """Return the folder of this user's sockets, which need not exist."""
    user = os.getuid()
    run = Path(f"/run/user/{user}")
    return run / "hotshoe" if run.is_dir() else Path(f"/tmp/hotshoe-{user}")


def is_private(path: Path) -> bool:
    """Return whether a path is a folder of this user that nobody else can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return own and not found.st_mode & 0o077


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end belongs to a process of this user."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(struct.unpack("3i", found)[1] == os.getuid())


def digest() -> str:
    """Return what stands for all that a process cannot change after its start."""
    flags = [*sys.flags], sorted(sys._xoptions.items()), sys.warnoptions
    code = __version__, sys.version, sys.prefix, sys.path[not sys.flags.safe_path :]
    variables = os.environ.items()  # noqa: TID251 - compared, not read
    environment = sorted(item for item in variables if item[0] not in OF_A_TERMINAL)
    user = os.getgid(), sorted(os.getgroups())
    place = sorted(os.sched_getaffinity(0)), _namespaces(), _control_group()
    text = json.dumps([flags, code, environment, user, place])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _namespaces() -> list[str]:
    return sorted(str(entry.readlink()) for entry in Path("/proc/self/ns").iterdir())


def _control_group() -> str:
    """Return the limits that hold for this process; those of all login sessions count as one."""
    text = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return re.sub(r"session-\w+\.scope", "session", text)
