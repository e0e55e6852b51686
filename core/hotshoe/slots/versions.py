"""Fields of specifications that came with a version of the hooks. Free of torch."""

from __future__ import annotations

from dataclasses import field, fields, is_dataclass
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
    for declared in fields(spec):
        value, version = getattr(spec, declared.name), declared.metadata.get(_SINCE, 0)
        if version > hook_api and value != declared.default:
            found.append((f"{declared.name}={value}", version))
        elif is_dataclass(value):
            found += younger_fields(value, hook_api)
    return found
