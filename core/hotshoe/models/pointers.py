"""Recognizes what a clone holds where Git LFS has not fetched a file: a few lines of text.

Asked when a file proves to be unreadable, to say why.
"""

from pathlib import Path

from hotshoe.models.files import open_regular

MAGIC = b"version https://git-lfs.github.com/spec/"


def pointer_hint(path: Path) -> str:
    """Return words for an error message about a file, empty unless it is such a pointer."""
    with open_regular(path) as file:
        pointer = file.read(len(MAGIC)) == MAGIC
    return " (it is a pointer to a file in Git LFS: run `git lfs pull` there)" if pointer else ""
