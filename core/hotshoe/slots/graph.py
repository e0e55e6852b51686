"""What the engine asks slot `graph` for: recording of every step where some candidate does that,
else of decode steps, or of none. The runner (`hotshoe.runner.graphs`) records; this only chooses,
for it and for who explains."""

from collections.abc import Sequence
from dataclasses import replace

from hotshoe.config import EngineConfig
from hotshoe.slots.base import COMPOSED, Selector
from hotshoe.slots.specs import GraphSpec, TransferSpec
from hotshoe.slots.verdict import REFERENCE
from hotshoe.types.levels import LEVELS


def recordable(
    selector: Selector, config: EngineConfig, asynchronous: bool, waits: Sequence[str] = ()
) -> tuple[GraphSpec | None, str]:
    """Return what is to be recorded, None for nothing, and what alone stands against all or some.

    Args:
        selector: Has decided every operation of a step.
        config: As the engine runs it.
        asynchronous: The device works beside its host, which a recording relieves.
        waits: What of the model's own code waits for the device.
    """
    if hindering(config):
        return None, ""
    if waits and asynchronous:
        return None, f"none recorded, as {waits[0]} waits for the device"
    decisions, slots = selector.decisions.values(), selector.slots
    waiting = {d.slot for d in decisions if slots[d.slot].reference_waits and not d.native}
    if waiting and asynchronous:
        names = " and ".join(sorted(waiting))
        return None, f"none recorded, as the reference of {names} waits for the device"
    if config.offloads and not selector.offers("transfer", TransferSpec(1, fetches=True)):
        return None, "none recorded, as the reference of transfer waits for the device"
    if config.offloads:  # pieces end where copies are under way
        called = graph_spec(selector, config.max_num_seqs)[0]
        spec, hindrance = replace(called, pieces=False), "weights in host memory"
    elif not (level := LEVELS[config.optimization_level]).prompts:
        few = config.max_num_seqs if level.decodes is None else level.decodes
        called = graph_spec(selector, min(config.max_num_seqs, few))[0]
        named = f"optimization_level {config.optimization_level}"
        spec, hindrance = replace(called, pieces=False), named
    else:
        spec, hindrance = graph_spec(selector, config.max_num_seqs)
    offered = selector.offers("graph", spec)
    forced = config.kernel.get("graph", REFERENCE) != REFERENCE
    which = "of decode steps alone" if offered else "none recorded"
    said = f"{which} ({hindrance})" if hindrance else ""
    return spec if offered or forced or asynchronous else None, said


def hindering(config: EngineConfig) -> str:
    """Return the option that forbids to record anything, or nothing."""
    options = {
        "enforce_eager": config.enforce_eager,
        "check_candidates": config.check_candidates,
        f"optimization_level {config.optimization_level}": (
            LEVELS[config.optimization_level].decodes == 0
        ),
    }
    return next((name for name, holds in options.items() if holds), "")


def graph_spec(selector: Selector, max_num_seqs: int) -> tuple[GraphSpec, str]:
    """Return the specification, and why not all steps are recorded although somebody records."""
    decisions, slots = selector.decisions.values(), selector.slots
    inside = {(d.slot, d.chosen) for d in decisions if not slots[d.slot].outside}
    called = tuple(sorted(f"{slot}={name}" for slot, name in inside if name != COMPOSED))
    decodes = GraphSpec(max_num_seqs, operations=called)
    every = replace(decodes, pieces=True)
    hindrance = selector.hindrance("graph", every)
    if not hindrance:
        return every, ""
    records = selector.offers("graph", GraphSpec(max_num_seqs))
    return decodes, hindrance if records else ""
