"""Whether a library of others can be used, found out without importing it.

A library changes its calls from one release to the next. So a candidate names the releases that it
was written for, and refuses the others.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from functools import cache


@cache
def installed(distribution: str) -> str | None:
    """Return the version of a distribution, None where it is not installed.

    A process looks once: candidates are asked for every specification, and a look reads folders.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def hindrance(distribution: str, releases: Sequence[str]) -> str:
    """Say why a library cannot be used, "" where it can.

    Args:
        distribution: As it is installed.
        releases: Those that are known, such as "0.6".
    """
    version = installed(distribution)
    if version is None:
        return f"package {distribution} is not installed"
    if ".".join(version.split(".")[:2]) in releases:
        return ""
    return f"{distribution} {version} is installed, and known are {', '.join(releases)}"
