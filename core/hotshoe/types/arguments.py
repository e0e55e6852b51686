"""Request arguments that logits processors declare: kind, bounds and default of each.

A request brings them as `SamplingParams.extra_args`. The front end checks them by the declarations,
so that a step meets nothing else. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotshoe.errors import RequestError
from hotshoe.suggest import did_you_mean

FIELD = "extra_args"
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "string": ((str,), "text"),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Attributes:
        kind: Of the value, or of each entry of a list.
        default: Of a request that gives other arguments of the same processor and not this one.
        low, high: Bounds of a number, and of the length of text.
        choices: The only texts that are allowed; empty if all are.
        max_count: Most entries of a list; None: the value is no list.
    """

    kind: Literal["boolean", "integer", "number", "string"]
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    max_count: int | None = None

    def check(self, name: str, value: object) -> None:
        """Refuse a value that was not declared.

        Raises:
            RequestError: It has another kind or lies outside the bounds.
        """
        if self.max_count is None:
            self._check_one(name, value)
            return
        if not isinstance(value, (list, tuple)) or len(value) > self.max_count:
            raise _refusal(name, f"a list of at most {self.max_count} entries", value)
        for entry in value:
            self._check_one(name, entry)

    def _check_one(self, name: str, value: Any) -> None:
        types, article = _KINDS[self.kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _refusal(name, article, value)
        if self.choices and value not in self.choices:
            raise _refusal(name, f"one of {', '.join(self.choices)}", value)
        if isinstance(value, float) and not math.isfinite(value):
            raise _refusal(name, "a finite number", value)
        what: str
        size: Any
        size, what = (len(value), " long") if isinstance(value, str) else (value, "")
        low, high = self.low, self.high
        # So that NaN is refused, too.
        if (low is not None and not size >= low) or (high is not None and not size <= high):
            least = "" if low is None else f" at least {low:g}"
            most = "" if high is None else f" at most {high:g}"
            joint = " and" if least and most else ""
            raise _refusal(name, f"{article},{least}{joint}{most}{what}", value)


def check_arguments(given: Mapping[str, Any], declared: Mapping[str, Argument]) -> None:
    """Refuse arguments that no processor takes, and values that were not declared.

    Raises:
        RequestError: The message names the argument.
    """
    for name, value in given.items():
        if not declared:
            raise RequestError(
                f"{FIELD}.{name} is for a logits processor, but none is loaded "
                "(--logits-processors)",
                f"{FIELD}.{name}",
            )
        if name not in declared:
            known = f"{did_you_mean(name, declared)} (known: {', '.join(sorted(declared))})"
            message = f"{FIELD}.{name} is known to no logits processor{known}"
            raise RequestError(message, f"{FIELD}.{name}")
        declared[name].check(name, value)


def _refusal(name: str, wanted: str, value: object) -> RequestError:
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    return RequestError(f"{FIELD}.{name} must be {wanted}, not {shown}", f"{FIELD}.{name}")
