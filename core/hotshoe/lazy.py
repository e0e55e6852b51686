"""Lazy references: `"module:attribute"` text in place of an object that is costly to import."""

import importlib
from collections.abc import Callable
from typing import Any


def resolve_lazy(target: Callable[..., Any] | str) -> Any:
    """Import `"module:attribute"`; anything else is returned as it is.

    Raises:
        ValueError: It is text of another form.
    """
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    if not (module and attribute):
        raise ValueError(f"{target!r} names no object; write it as 'module:attribute'")
    return getattr(importlib.import_module(module), attribute)
