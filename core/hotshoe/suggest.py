"""One phrase for every misspelt name: flag, command, plugin, option or slot."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest known name, or nothing when none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
