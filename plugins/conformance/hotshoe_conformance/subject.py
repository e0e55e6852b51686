"""What is tested: a platform's configuration, alone or as one of several ranks, and its candidates.

The kit, the processes of its ranks, and the page of what is supported all ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import DeviceFacts, Platform
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import candidates_of, choose_platform
from hotshoe.slots import (
    REFERENCE,
    Candidate,
    KVLayout,
    Selector,
    all_slots,
)


def resolved(
    platform: Platform, options: Mapping[str, Any], rank: int = 0, size: int = 1
) -> EngineConfig:
    """Return a platform's configuration, as one of several workers where there are.

    Raises:
        ConfigError: An option is wrong, or there cannot be so many workers.
    """
    config = EngineConfig(
        platform=platform.name, platform_options=dict(options), tensor_parallel_size=size
    )
    config = config.resolve_changes(platform.resolve(config))
    if size > 1:
        platform.take_part(rank, size)
    return config


def why_alone(plugins: PluginManager, name: str, options: Mapping[str, Any], size: int) -> str:
    """Say why a platform cannot be that of so many workers here, empty if it can."""
    try:
        resolved(choose_platform(plugins, name), options, 0, size)
    except ConfigError as error:
        return str(error)
    return ""


def offered(
    platform: Platform, plugins: PluginManager, facts: DeviceFacts
) -> dict[str, Sequence[Candidate]]:
    """Return every slot's candidates, the reference last.

    Raises:
        SelectionError: A platform or plugin offers something that no engine could take.
    """
    found = candidates_of(platform, plugins)
    slots = all_slots(plugins)
    Selector(slots, found, facts)  # refuses unknown slots
    found = [slots[c.slot].admitted(c) for c in found]
    return {
        name: [
            *(c for c in found if c.slot == name),
            Candidate(name, REFERENCE, slot.reference_supports, slot.reference),
        ]
        for name, slot in slots.items()
    }


def declared_layout(candidate: Candidate, spec: Any, facts: DeviceFacts) -> KVLayout | None:
    """Return the layout that an attention candidate says it reads, None where it does not say."""
    if candidate.layout is not None:
        return candidate.declared_layout(spec, facts)
    layout = getattr(candidate.build, "layout", None)
    return layout if isinstance(layout, KVLayout) else None
