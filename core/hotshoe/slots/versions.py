"""Fields of specifications that came with a version of the hooks. Free of torch."""

from __future__ import annotations

from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any

_SINCE = "since"


def since(hook_api: int, default: Any) -> Any:
    """Declare a field that came with a hook version; with its default, nobody need know it."""
    return field(default=default, metadata={_SINCE: hook_api})


def younger_fields(spec: Any, hook_api: int) -> list[tuple[str, int]]:
    """Return what a specification asks for that came after a hook version.

    Returns:
        `name=value` of each younger field that has not its default, and the version of the field.
    """
    found: list[tuple[str, int]] = []
    for name, version, default in _declared(spec.__class__):
        value = getattr(spec, name)
        if version > hook_api and value != default:
            found.append((f"{name}={value}", version))
        elif is_dataclass(value):
            found += younger_fields(value, hook_api)
    return found


@cache
def _declared(kind: type[Any]) -> tuple[tuple[str, int, Any], ...]:
    """Return name, version and default of each field; every candidate asks for them."""
    return tuple((f.name, f.metadata.get(_SINCE, 0), f.default) for f in fields(kind))
