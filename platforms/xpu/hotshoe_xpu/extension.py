"""Whether one of Intel's packages beside PyTorch can be used, found out without importing it.

Each is built for one release of PyTorch, whose number it bears, and fails to import beside another.
The last releases are for PyTorch 2.8.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

import torch


def hindrance(package: str, distribution: str) -> str:
    """Say why a package cannot be used, "" where it can.

    Args:
        package: As it is imported.
        distribution: As it is installed.
    """
    if importlib.util.find_spec(package) is None:
        return f"package {package} is not installed"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"package {package} does not say for which PyTorch it is built"
    release = ".".join(version.split(".")[:2])
    if not torch.__version__.startswith(f"{release}."):
        return f"{package} {version} is for PyTorch {release}, and this is {torch.__version__}"
    return ""
