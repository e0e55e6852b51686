"""What the engine asks slot `graph` for: recording of every step where some candidate does that,
else of decode steps. The runner (`hotshoe.runner.graphs`) records; this only chooses."""

from dataclasses import replace

from hotshoe.slots.base import COMPOSED, Selector
from hotshoe.slots.specs import GraphSpec

#: Slots that the runner calls beside a step, or for it.
OUTSIDE = ("graph", "sample", "transfer")


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
