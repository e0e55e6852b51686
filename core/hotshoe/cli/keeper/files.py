"""Whether the files of imported modules are still those that were imported."""

from __future__ import annotations

import os
import sys


class LoadedFiles:
    """The files of all modules that this process has imported."""

    def __init__(self) -> None:
        modules = list(sys.modules.values())
        found = {getattr(module, "__file__", None) for module in modules}
        self._seen = {path: _stamp(path) for path in found if isinstance(path, str)}

    def are_unchanged(self) -> bool:
        """Return whether each is the same file, as it was."""
        return all(_stamp(path) == seen for path, seen in self._seen.items())


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of times
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
