"""What the engine asks slot `graph` for: recording of every step where some candidate does that,
else of decode steps. The runner (`hotshoe.runner.graphs`) records; this only chooses."""

from hotshoe.slots.base import Selector
from hotshoe.slots.specs import GraphSpec


def graph_spec(selector: Selector, max_num_seqs: int) -> tuple[GraphSpec, str]:
    """Return the specification, and why only decode steps are recorded, "" unless that is so."""
    decodes, every = GraphSpec(max_num_seqs), GraphSpec(max_num_seqs, pieces=True)
    hindrance = selector.hindrance("graph", every)
    if not hindrance:
        return every, ""
    return decodes, hindrance if selector.offers("graph", decodes) else ""
