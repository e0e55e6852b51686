"""Remembers which files of weights were looked through for NaN and infinity: once is enough.

A checkpoint that was found sound has an empty file in the user's cache. Its name is a digest of
what the files are (path, size, time, inode) and of the tensors that were looked at, as ranks of a
pipeline look at different ones. So a mark is there or not, nothing is merged or locked, and files
that change are looked through again. Where no mark can be left, they are looked through each time.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Below the user's home.
FOLDER = Path(".cache/hotshoe/checked")
#: With more marks, all but the newest are dropped.
MOST = 1024


def mark_of(files: Sequence[Path], names: Iterable[str]) -> Path | None:
    """Return where the mark of these tensors of a checkpoint is; None if the user has no home."""
    with contextlib.suppress(OSError, RuntimeError):
        facts = [(os.path.realpath(file), file.stat()) for file in files]
        says = [(name, s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev) for name, s in facts]
        digest = hashlib.sha256(ascii([says, sorted(names)]).encode()).hexdigest()
        return Path.home() / FOLDER / digest
    return None


def is_marked(mark: Path | None) -> bool:
    """Tell whether those tensors were found sound before."""
    return mark is not None and os.path.exists(mark)  # noqa: PTH110  # False where it may not look


def leave(mark: Path | None) -> None:
    """Remember that they are sound, if that can be written; of too many marks, keep this one."""
    if mark is None:
        return
    with contextlib.suppress(OSError):
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch(mode=0o600)
        others = [path for path in mark.parent.iterdir() if path != mark]
        for other in others if len(others) >= MOST else ():
            other.unlink(missing_ok=True)
