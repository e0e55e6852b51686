"""The cases of every slot, found in the modules beside this one; a plugin's slot names its own."""

import importlib
import pkgutil
from collections.abc import Mapping

from hotshoe.errors import PluginError
from hotshoe.lazy import resolve_lazy
from hotshoe.slots import SLOTS, Slot
from hotshoe_conformance.cases.base import Suite

_MODULES = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
_FOUND = {v.slot: v for module in _MODULES for v in vars(module).values() if isinstance(v, Suite)}

#: Of core's slots, in their order.
SUITES: dict[str, Suite] = {name: _FOUND[name] for name in SLOTS if name in _FOUND}


def suites_of(slots: Mapping[str, Slot]) -> dict[str, Suite]:
    """Return the suite of every slot.

    Raises:
        PluginError: A plugin's slot has none, or something else.
    """
    found = dict(SUITES)
    for name, slot in slots.items():
        if name in found:
            continue
        suite = None if slot.suite is None else resolve_lazy(slot.suite)
        if not isinstance(suite, Suite) or suite.slot != name:
            raise PluginError(
                f"slot {name} names {slot.suite!r} as its conformance suite, which is no Suite of "
                "this slot; see hotshoe_conformance.cases.base"
            )
        found[name] = suite
    return found
