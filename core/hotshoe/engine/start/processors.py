"""Logits processors that a configuration names: found, checked against each other, made.

A name is that of a plugin's (hook `hotshoe_logits_processors`), or says where a class lies, as
`MODULE:CLASS`. See `hotshoe.sampling.processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hotshoe.errors import ConfigError, HotshoeError, PluginError
from hotshoe.foreign import cause_of, foreign, place_of
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.types import Argument

if TYPE_CHECKING:
    import torch

    from hotshoe.config import EngineConfig
    from hotshoe.plugins import PluginManager
    from hotshoe.sampling.stages import Planner

HOOK = "hotshoe_logits_processors"
OPTION = "logits_processors"


@dataclass(frozen=True, slots=True)
class FoundProcessor:
    """A processor that is named.

    Attributes:
        label: Names it and its package.
        kind: Its class.
        guard: Blames its package.
        arguments: What it declares.
    """

    label: str
    kind: Callable[..., Any]
    guard: foreign
    arguments: Mapping[str, Argument]


def find_processors(config: EngineConfig, plugins: PluginManager) -> list[FoundProcessor]:
    """Import the processors that a configuration names.

    Raises:
        ConfigError: One is named twice, or two take an argument of the same name.
        PluginError: One is unknown or defective.
    """
    names = config.logits_processors
    if len(set(names)) < len(names):
        raise ConfigError(f"{OPTION} names one twice: {', '.join(names)}; name each once")
    found = [_find(name, plugins) for name in names]
    declared_arguments(found)
    return found


def declared_arguments(found: Sequence[FoundProcessor]) -> dict[str, Argument]:
    """Return the arguments that requests may give.

    Raises:
        ConfigError: Two processors take one of the same name.
    """
    owners: dict[str, str] = {}
    for processor in found:
        for name in processor.arguments:
            if name in owners:
                raise ConfigError(
                    f"{OPTION}: {owners[name]} and {processor.label} both take an argument "
                    f"{name!r}; leave one of them out"
                )
            owners[name] = processor.label
    return {name: value for processor in found for name, value in processor.arguments.items()}


def make_processors(
    found: Sequence[FoundProcessor], model_path: str, vocab_size: int, device: torch.device
) -> list[Planner]:
    """Make the processors of a worker.

    Raises:
        PluginError: One cannot be made.
    """
    from hotshoe.sampling.processors import LoadedProcessor, Surroundings

    surroundings = Surroundings(vocab_size, device, model_path)
    made: list[Planner] = []
    for processor in found:
        with processor.guard:
            made.append(LoadedProcessor(processor.label, processor.kind(surroundings)).plan)
    return made


def _find(name: str, plugins: PluginManager) -> FoundProcessor:
    reference, owner = name, name.partition(":")[0].partition(".")[0]
    guard = foreign(partial(_blame, name), (HotshoeError,))
    if ":" not in name:
        reference = plugins.pick("logits processor", name, HOOK)
        owner, guard = plugins.owner(HOOK, name).distribution, blaming_plugin(plugins, HOOK, name)
    with guard:
        kind = resolve_lazy(reference)
        arguments = getattr(kind, "arguments", None)
        if not (callable(kind) and callable(getattr(kind, "plan", None))):
            raise TypeError("it is no class with a method plan(), see LogitsProcessor")
        if not isinstance(arguments, Mapping) or not all(
            isinstance(key, str) and isinstance(value, Argument) for key, value in arguments.items()
        ):
            raise TypeError("its attribute `arguments` does not map names to Argument objects")
    return FoundProcessor(f"logits processor {name} ({owner})", kind, guard, arguments)


def _blame(name: str, error: BaseException) -> PluginError:
    return PluginError(
        f"logits processor {name} cannot be used: {cause_of(error)}{place_of(error)}; mend it, or "
        f"leave it out of {OPTION}"
    )
