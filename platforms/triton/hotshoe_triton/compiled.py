"""Compiled kernels on disk: the folder where Triton keeps them, and news of each.

Triton finds a kernel again by its source, that of all it calls, its arguments' types and alignment,
constants, options, the architecture and the versions of itself and its backend. Platforms call this
when they take their device.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from triton import knobs

from hotshoe.errors import ConfigError

_log = logging.getLogger(__name__)


def keep_compiled(folder: str | None) -> str:
    """Let Triton keep compiled kernels in a folder, and tell of each kernel at level debug.

    Args:
        folder: None for Triton's own.

    Returns:
        The folder.

    Raises:
        ConfigError: Nothing can be written there.
    """
    if folder is not None:
        path = Path(folder).expanduser().absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"platform_options.kernel_cache {path}: {error.strerror}") from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(
                f"platform_options.kernel_cache {path}: nothing can be written there; "
                "name another folder"
            )
        knobs.cache.dir = str(path)
    if knobs.compilation.listener is None:
        knobs.compilation.listener = _tell
    return str(knobs.cache.dir)


def _tell(*, src: Any, times: Any, cache_hit: bool, **rest: Any) -> None:
    """Take Triton's news of one kernel, whose times are microseconds."""
    if cache_hit:
        _log.debug("kernel %s: found", src.name)
    else:
        _log.debug("kernel %s: compiled in %.1f s", src.name, times.total / 1e6)
