"""Reads a `quantization_config`: values of known kinds, and which layers a list of names means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from hotshoe.errors import CheckpointError
from hotshoe_quantization.patterns import matches

#: What to do about a form that is not read.
OTHERWISE = "use another quantization of the model, or the unquantized one with --quantization"


class Values:
    """Part of a `quantization_config`.

    Args:
        values: The object, as JSON has it.
        where: Its name in messages.
        file: What holds it, for messages.

    Raises:
        CheckpointError: It is no object; and in every method, that a value is not what it must be.
    """

    def __init__(
        self, values: object, where: str = "quantization_config", file: str = "config.json: "
    ) -> None:
        self.where, self._file = where, file
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{file}{where} must be an object, not {values!r}")
        self._values = values

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first value that is there, under any of the names that writers use."""
        found = (self._values.get(name) for name in names)
        return next((value for value in found if value is not None), default)

    def one_of(self, choices: Iterable[Any], *names: str, default: Any = None) -> Any:
        """Return a value that must be among the choices."""
        value, choices = self.get(*names, default=default), tuple(choices)
        if isinstance(value, str):
            value = value.lower()
        alike = [choice for choice in choices if type(choice) is type(value)]
        if value not in alike:
            otherwise = f"; {OTHERWISE}" if alike else ""
            said = f"is read as {' or '.join(map(str, choices))}, not {value!r}{otherwise}"
            self.refuse(names[0], said)
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return a boolean."""
        return bool(self.one_of((True, False), *names, default=default))

    def size(self, *names: str) -> int | None:
        """Return a group's size; None where -1 stands for a whole row."""
        value = self.get(*names)
        if type(value) is not int or (value < 1 and value != -1):
            self.refuse(names[0], f"must be a positive integer, or -1 for a row, not {value!r}")
        return None if value == -1 else value

    def names(self, *keys: str) -> tuple[str, ...]:
        """Return a list of names; empty where there is none."""
        value = self.get(*keys, default=())
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.refuse(keys[0], f"must be a list of names, not {value!r}")
        if not all(isinstance(name, str) for name in value):
            self.refuse(keys[0], "must be a list of names")
        return tuple(value)

    def objects(self, name: str) -> dict[str, Values]:
        """Return the objects of an object, by name."""
        found = self.get(name, default={})
        if not isinstance(found, Mapping):
            self.refuse(name, f"must be an object, not {found!r}")
        where = f"{self.where}.{name}"
        return {str(k): Values(v, f"{where}.{k}", self._file) for k, v in found.items()}

    def over(self, other: Values) -> Values:
        """Return these values, and those of another where there are none."""
        return Values({**other._values, **self._values}, self.where, self._file)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say what is wrong with a value."""
        raise CheckpointError(f"{self._file}{self.where}.{name} {why}")


def holds(names: Iterable[str], layer: str) -> bool:
    """Tell whether a layer is meant: one of the names is its own, or whole parts of it."""
    return any(f".{name.strip('.')}." in f".{layer}." for name in names)


def skips(names: Sequence[str], layer: str) -> bool:
    """Tell whether a layer is meant: by names as for `holds`, or ends of its own."""
    return holds(names, layer) or layer.endswith(tuple(names))


def matches_pattern(names: Iterable[str], layer: str) -> bool:
    """Tell whether a layer is meant by names that may have wildcards, or is within one of them."""
    return any(fnmatchcase(layer, name) or layer.startswith(f"{name}.") for name in names)


def matches_regex(names: Iterable[str], layer: str, where: str) -> bool:
    """Tell whether a layer is named, or matches a regular expression that follows `re:`.

    Raises:
        CheckpointError: An expression is malformed.
    """
    for name in names:
        pattern = name.removeprefix("re:")
        if name == layer or (pattern != name and searches(pattern, layer, where, re.match)):
            return True
    return False


def searches(
    pattern: str, layer: str, where: str, how: Callable[[str, str], object] = re.search
) -> bool:
    """Tell whether a regular expression means some part of a layer's name, or its beginning.

    Raises:
        CheckpointError: It is malformed, or may take very long.
    """
    try:
        return matches(pattern, layer, how)
    except (re.error, OverflowError, RecursionError) as error:
        why = f"the malformed regular expression {pattern!r:.200}: {error}"
    except ValueError as error:
        why = f"the regular expression {pattern!r:.200}, which {error}; write a simpler one"
    raise CheckpointError(f"config.json: {where} holds {why}")
