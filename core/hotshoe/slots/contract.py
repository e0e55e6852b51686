"""Judges an operation that was just built: is it what its slot's record says? Free of torch.

It is asked once an operation, before a layer holds it, so that the candidate is named and not the
model that would have called it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.slots.specs import KVLayout

if TYPE_CHECKING:
    from hotshoe.slots.base import Slot

_LAYOUT = "layout"


def shortcoming(slot: Slot, operation: object) -> str:
    """Say in what an operation falls short of its slot's contract; "" for nothing."""
    if operation is None:
        return "build() returned None, not an operation"
    if slot.results is not None and not callable(operation):
        return f"its operation, of type {type(operation).__name__}, cannot be called"
    missing = [name for name in slot.needs if not hasattr(operation, name)]
    if missing:
        return f"its operation has no {' and no '.join(missing)}"
    for name in slot.needs:
        found = getattr(operation, name)
        if not (isinstance(found, KVLayout) if name == _LAYOUT else callable(found)):
            wanted = KVLayout.__name__ if name == _LAYOUT else "method"
            return f"its operation's {name} is of type {type(found).__name__}, not a {wanted}"
    return ""


def takes_quantized(operation: object) -> bool:
    """Tell whether an operation takes activations that the one before it has quantized."""
    return bool(getattr(operation, "takes_quantized", False))
