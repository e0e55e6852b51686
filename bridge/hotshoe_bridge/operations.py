"""Chooses operations as an engine does, without one: for hosts that have engines of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hotshoe.config import EngineConfig
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import blaming, candidates_of, choose_platform, facts_of
from hotshoe.slots import Decision, Selector, all_slots

#: Element types that slots know, as PyTorch has them.
DTYPES = {getattr(torch, name): name for name in ("float32", "bfloat16", "float16")}


class Operations:
    """The operations of one platform and of the packs beside it.

    Args:
        platform: Its name, or "auto".
        kernels: Forced candidates, by slot.
        plugins: Default: those installed.

    Raises:
        UserError: There is no such platform here, or no such candidate.
    """

    def __init__(
        self,
        platform: str = "auto",
        kernels: Mapping[str, str] | None = None,
        plugins: PluginManager | None = None,
    ) -> None:
        self.plugins = plugins = plugins or PluginManager()
        chosen = choose_platform(plugins, platform)
        self.platform = chosen.name
        with blaming(chosen.name):
            config = EngineConfig(platform=chosen.name)
            config = config.resolve_changes(chosen.resolve(config))
            self.facts = facts_of(chosen)
            offered = candidates_of(chosen, plugins)
            dict(chosen.activate(config))
        self._built: dict[tuple[str, Any], Any] = {}
        self._offered = offered
        self.selector = Selector(all_slots(plugins), offered, self.facts, forced=kernels)

    def offered(self) -> dict[str, list[str]]:
        """Return the names of the candidates of every slot, but for core's own."""
        slots = self.selector.slots
        return {slot: [c.name for c in self._offered if c.slot == slot] for slot in slots}

    def choose(self, slot: str, spec: Any) -> Any:
        """Build an operation; None for a block that is composed of other slots' operations."""
        return self.selector.choose(slot, spec)

    def choose_once(self, slot: str, spec: Any) -> Any:
        """Build an operation without weights, the same one for equal specifications."""
        key = (slot, spec)
        if key not in self._built:
            self._built[key] = self.choose(slot, spec)
        return self._built[key]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was chosen so far, and why."""
        return tuple(self.selector.decisions.values())
