"""What the system says of processes, for tests that end them. Not a test module."""

from pathlib import Path


def state_of(pid: int) -> str:
    """Return the system's letter for what a process does, Z for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def is_stopped(pid: int) -> bool:
    """Tell whether all threads of a process have stopped.

    Only then does the system know of a stopped process, and let one go on whose parent ends.
    """
    try:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:  # one has ended meanwhile
        return False
    return set(states) == {"T"}


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    return state_of(pid) != "Z"
