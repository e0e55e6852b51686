"""Tokens whose keys and values a head writes later: those of several steps in one pass.

Where nobody wants drafts, a head still has to write its caches. That reads its weights, for one
token of each row. So what it reads of a step is kept, and a pass over several steps writes all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hotshoe.layers import ForwardBatch
from hotshoe.models.base import DraftHead
from hotshoe.slots import CacheView

#: Tokens that are kept at most, and rows of a step of which some are kept, padding left out.
TOKENS, ROWS = 1024, 512
#: Kinds of caches into which a token is written where a slot says, whatever the step is. Blocks of
#: windows change hands while their sequence runs.
BY_SLOTS = frozenset({"full", "latent", "index"})


@dataclass(slots=True)
class Later:
    """What is kept.

    Args:
        ids: [TOKENS] the token behind each token.
        states: [TOKENS, columns] what the model made of each.
        positions: [TOKENS] int32.
        slots: Of each view of the head, [TOKENS] int32.

    Attributes:
        count: Tokens that are kept.
        batch: Of the last step.
    """

    ids: Tensor
    states: Tensor
    positions: Tensor
    slots: dict[int, Tensor]
    count: int = field(default=0, init=False)
    batch: ForwardBatch | None = field(default=None, init=False)

    @classmethod
    def of(cls, head: DraftHead, states: Tensor) -> Later | None:
        """Make room; None for a head with caches of which slots do not say all.

        Args:
            states: Of any step.
        """
        specs = [layer.cache_spec for layer in head.cache_layers]
        if any(spec.kind not in BY_SLOTS or spec.tokens_per_entry > 1 for spec in specs):
            return None
        numbers = torch.zeros(TOKENS, dtype=torch.int32, device=states.device)
        slots = {layer.view: numbers.clone() for layer in head.cache_layers}
        room = states.new_zeros(TOKENS, *states.shape[1:])
        return cls(numbers.clone(), room, numbers, slots)

    def has_room(self, count: int) -> bool:
        """Tell whether so many tokens can be kept beside the others."""
        return self.count + count <= TOKENS

    def add(self, ids: Tensor, states: Tensor, batch: ForwardBatch) -> None:
        """Keep the tokens of a step, as `DraftHead.forward` takes them."""
        if not self.slots:
            return
        own = slice(self.count, self.count + len(ids))
        self.ids[own].copy_(ids)
        self.states[own].copy_(states)
        self.positions[own].copy_(batch.positions)
        for number, slots in self.slots.items():
            slots[own].copy_(batch.views[number].slot_mapping)
        self.count, self.batch = own.stop, batch

    def taken(self) -> tuple[Tensor, Tensor, ForwardBatch]:
        """Return ids, states and a batch of all that is kept, and keep nothing any more."""
        batch, own = self.batch, slice(self.count)
        assert batch is not None
        views = list(batch.views)
        for number, slots in self.slots.items():
            views[number] = CacheView(views[number].block_table, slots[own])
        self.count, self.batch = 0, None
        return (
            self.ids[own],
            self.states[own],
            replace(batch, positions=self.positions[own], views=views),
        )
