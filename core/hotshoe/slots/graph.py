"""What the engine asks slot `graph` for: recording of every step where some candidate does that,
else of decode steps, or of none. The runner (`hotshoe.runner.graphs`) records; this only chooses,
for it and for who explains."""

from dataclasses import replace

from hotshoe.config import EngineConfig
from hotshoe.slots.base import COMPOSED, REFERENCE, Selector
from hotshoe.slots.specs import GraphSpec

#: Slots that the runner calls beside a step, or for it.
OUTSIDE = ("graph", "sample", "transfer")
#: Slots whose references wait for the device, so that a step with one cannot be recorded.
WAITING = ("attention", "communicator")


def recordable(
    selector: Selector, config: EngineConfig, asynchronous: bool
) -> tuple[GraphSpec | None, str]:
    """Return what is to be recorded, None for nothing, and what alone stands against all or some.

    Args:
        selector: Has decided every operation of a step.
        config: As the engine runs it.
        asynchronous: The device works beside its host, which a recording relieves.
    """
    if config.enforce_eager:
        return None, ""
    decisions = selector.decisions.values()
    waiting = {d.slot for d in decisions if d.slot in WAITING and not d.native}
    if waiting and asynchronous:
        slots = " and ".join(sorted(waiting))
        return None, f"none recorded, as the reference of {slots} waits for the device"
    spec, hindrance = graph_spec(selector, config.max_num_seqs)
    offered = selector.offers("graph", spec)
    forced = config.kernel.get("graph", REFERENCE) != REFERENCE
    which = "of decode steps alone" if offered else "none recorded"
    said = f"{which} ({hindrance})" if hindrance else ""
    return spec if offered or forced or asynchronous else None, said


def graph_spec(selector: Selector, max_num_seqs: int) -> tuple[GraphSpec, str]:
    """Return the specification, and why not all steps are recorded although somebody records."""
    decisions = selector.decisions.values()
    inside = {(d.slot, d.chosen) for d in decisions if d.slot not in OUTSIDE}
    called = tuple(sorted(f"{slot}={name}" for slot, name in inside if name != COMPOSED))
    decodes = GraphSpec(max_num_seqs, operations=called)
    every = replace(decodes, pieces=True)
    hindrance = selector.hindrance("graph", every)
    if not hindrance:
        return every, ""
    records = selector.offers("graph", GraphSpec(max_num_seqs))
    return decodes, hindrance if records else ""
