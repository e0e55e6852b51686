"""Regular expressions of a checkpoint's configuration, which strangers write, in bounded time.

Python's engine tries again and again where an expression can match in many ways. So those are
refused that can do so without limit: repeated groups with alternatives or repeats inside, and more
repeats, one after the other, than names of layers need.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

#: Characters of an expression, and of a name that is looked at; longer names are no layers'.
LONGEST, LONGEST_NAME = 4096, 256
#: Repeats of other than digits: a name of 60 characters takes some hundredths of a second.
MOST_REPEATS = 5
#: Repeats of digits, and what no layer's name has: so many digits in a row.
MOST_OF_DIGITS, MANY_DIGITS = 12, re.compile(r"\d{7}")
#: What one match may take of the processor's time, in seconds. A common one takes 1e-5; the rest is
#: for what Python itself does meanwhile, such as collecting garbage.
LIMIT_S = 1.0
#: Atoms, then how often; after "(" or "|" nothing is repeated.
_TOKEN = re.compile(
    r"(?P<digit>\\d|\[0-9\])|(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()|*+?{\\\[])"
    r"|(?P<open>\((?:\?(?:[:=!>|]|<[=!]|P?<\w+>|P=\w+|[aiLmsux-]+:?))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<count>(?:[*+?]|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\})[?+]?)|(?P<brace>\{)",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """Whether a group, or what was read last, can match in several ways."""

    varies: bool = False


def matches(pattern: str, text: str, how: Callable[[re.Pattern[str], str], object]) -> bool:
    """Tell whether an expression matches a text; false for texts that no layer is called.

    Raises:
        re.error: The expression is malformed.
        ValueError: It may take, or takes, too long.
    """
    if reason := _unbounded(pattern, how is re.search):
        raise ValueError(reason)
    if len(text) > LONGEST_NAME or MANY_DIGITS.search(text):
        return False
    compiled = re.compile(pattern)
    began = time.thread_time()
    found = how(compiled, text) is not None
    if time.thread_time() - began > LIMIT_S:
        raise ValueError(f"takes more than {LIMIT_S} s for {text}")
    return found


@lru_cache(maxsize=4096)
def _unbounded(pattern: str, anywhere: bool) -> str:
    """Return why an expression may take too long; "" if it cannot."""
    if len(pattern) > LONGEST:
        return f"has {len(pattern)} characters, more than {LONGEST}"
    groups, last, digits = [_Group()], _Group(), False
    repeats = {True: 0, False: int(anywhere)}  # of digits, and of anything
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup if token.lastgroup not in ("low", "comma", "high") else "count"
        if kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            last = groups.pop()
            groups[-1].varies |= last.varies
        elif kind == "or":
            groups[-1].varies = True
        elif kind == "count":
            low, high = _times(token)
            if high > 1 and last.varies:
                return "repeats a group that has alternatives or repeats inside"
            varies = low != high
            repeats[digits] += varies and high > 1
            groups[-1].varies |= varies or high > 1
        else:
            last = _Group()
        if kind != "count":
            digits = kind == "digit"
    for of_digits, most in ((False, MOST_REPEATS), (True, MOST_OF_DIGITS)):
        if repeats[of_digits] > most:
            return f"has {repeats[of_digits]} repeats, more than {most}"
    return ""


def _times(token: re.Match[str]) -> tuple[float, float]:
    """Return how often at least and at most something is repeated."""
    sign = token["count"][0]
    if sign != "{":
        return {"*": (0.0, float("inf")), "+": (1.0, float("inf")), "?": (0.0, 1.0)}[sign]
    low = float(token["low"] or 0)
    if not token["comma"]:
        return low, low
    return low, float(token["high"] or "inf")
