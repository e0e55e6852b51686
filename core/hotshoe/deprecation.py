"""How something public goes: it warns for one minor version, and is gone in the next.

Plugins and scripts see a DeprecationWarning; `hotshoe plugins` prints those that plugins cause.
"""

from __future__ import annotations

import warnings


def deprecated(what: str, instead: str, gone_in: str, stacklevel: int = 2) -> str:
    """Warn that something still works, but not for long.

    Args:
        what: What was used, such as `hook hotshoe_models`.
        instead: What to do, as a command to the reader.
        gone_in: The version that will no longer have it.
        stacklevel: As for `warnings.warn`, seen from the caller.

    Returns:
        The warning's text.
    """
    text = f"{what} is deprecated and will be gone in hotshoe {gone_in}; {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
    return text
