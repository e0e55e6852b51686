"""Which experts of a mixture each rank holds, and where tokens find them (expert parallelism).

All ranks of a stage have all tokens and choose experts alike. Each computes the chosen experts that
it holds, whole, and the ranks add up once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.slots import Placement
from hotshoe.types.mesh import Axis

#: In the place of an expert behind the last one here: far below 0.
NOWHERE = -(1 << 30)
#: Of the tables of experts that have several places; so many places share tokens evenly, or fewer
#: but five.
TURNS = 12


@dataclass(slots=True, eq=False)
class Share:
    """One rank's experts of a layer.

    Attributes:
        experts: Their numbers in the model, by place, as they are loaded.
        placement: For the operation; None where this rank holds all.
        everywhere: [ranks, places] int64, in host memory: which expert is where; -1 for none.
        owners: [places + 1] int32, on the device: which expert each place here has; then
            `NOWHERE`. Empty where experts stay.
        state: What the operation keeps; where experts move.
    """

    experts: tuple[int, ...]
    placement: Placement | None = None
    everywhere: Tensor = field(default_factory=lambda: torch.empty(0))
    owners: Tensor = field(default_factory=lambda: torch.empty(0))
    state: Callable[[], Mapping[str, Tensor]] | None = None

    @property
    def moves(self) -> bool:
        """Whether experts move between ranks."""
        return self.placement is not None and self.placement.counts is not None

    @property
    def counts(self) -> Tensor:
        """Tokens of each expert [num_experts], on the device."""
        assert self.placement is not None and self.placement.counts is not None
        return self.placement.counts

    @property
    def num_experts(self) -> int:
        """Of the model."""
        return len(self.counts)

    @property
    def turns(self) -> int:
        """Rows of the table."""
        assert self.placement is not None
        return len(self.placement.table)

    def place(self, everywhere: Tensor, rank: int) -> None:
        """Say to this rank where experts are, for steps that begin later."""
        assert self.placement is not None
        self.everywhere = everywhere
        table = table_of(everywhere, self.num_experts, rank, self.turns)
        self.placement.table.copy_(table, non_blocking=True)
        self.owners[:-1].copy_(everywhere[rank], non_blocking=True)

    @property
    def held(self) -> int | None:
        """What `MoeSpec.held` is."""
        return None if self.placement is None else len(self.experts)

    def others(self, num_experts: int) -> list[int]:
        """Return the experts of other ranks alone."""
        return sorted(set(range(num_experts)) - set(self.experts))


def share_of(num_experts: int, axis: Axis, device: str, redundant: int | None = None) -> Share:
    """Give each rank neighboring experts, as many as the others, or one fewer.

    Args:
        num_experts: Of the model.
        axis: This rank's place among those that hold experts.
        device: Where the operation is.
        redundant: Second and further places of experts, if experts move; all ranks have equally
            many places then, so that there may be more. None where experts stay.

    Raises:
        ConfigError: There are more ranks than experts, or more places than are of use.
    """
    if axis.size == 1:
        return Share(tuple(range(num_experts)))
    if axis.size > num_experts:
        raise ConfigError(
            f"enable_expert_parallel: {axis.size} ranks cannot share the model's {num_experts} "
            f"experts; use a tensor_parallel_size of {num_experts} or less"
        )
    if redundant is not None:
        return _movable(num_experts, axis, device, redundant)
    parts = list(torch.arange(num_experts).tensor_split(axis.size))
    experts = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1)
    table = table_of(experts, num_experts, axis.rank).to(device)
    return Share(tuple(parts[axis.rank].tolist()), Placement(table))


def _movable(num_experts: int, axis: Axis, device: str, redundant: int) -> Share:
    places = -(-(num_experts + redundant) // axis.size)
    if places > num_experts:
        raise ConfigError(
            f"num_redundant_experts {redundant}: {axis.size} ranks have no use for more than "
            f"{num_experts * (axis.size - 1)} beside the model's {num_experts} experts"
        )
    experts = (torch.arange(axis.size * places) % num_experts).view(axis.size, places)
    table = table_of(experts, num_experts, axis.rank, TURNS).to(device)
    counts = torch.zeros(num_experts, dtype=torch.int32, device=device)
    own = experts[axis.rank].tolist()
    owners = torch.tensor([*own, NOWHERE], dtype=torch.int32, device=device)
    return Share(tuple(own), Placement(table, counts), experts, owners)


def table_of(experts: Tensor, num_experts: int, rank: int, turns: int = 1) -> Tensor:
    """Return a rank's `Placement.table` [turns, num_experts] int32.

    Args:
        experts: [ranks, places] int64: which expert is where, -1 for none, behind the others. Each
            expert has a place at least.
        num_experts: Of the model.
        rank: Whose table it is.
        turns: Rows. An expert of several places is found at one after the other.
    """
    width = experts.shape[1]
    flat = experts.flatten()
    order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
    copies = flat[order].bincount(minlength=num_experts)
    first = copies.cumsum(0) - copies
    found = order[first + torch.arange(turns)[:, None] % copies]
    held = int((experts[rank] >= 0).sum())
    return torch.where(found // width == rank, found % width, held).to(torch.int32)


def names_of(templates: Sequence[str], experts: Iterable[int]) -> list[str]:
    """Return regular expressions for the tensors of experts, from names with {} for a number."""
    numbers = "|".join(map(str, experts))
    return [f"^{re.escape(t).replace(re.escape('{}'), f'(?:{numbers})')}\\." for t in templates]
