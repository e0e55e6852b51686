"""Which experts of a mixture each rank holds, and where tokens find them (expert parallelism).

All ranks of a stage have all tokens and choose experts alike. Each computes the chosen experts that
it holds, whole, and the ranks add up once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.slots import Placement
from hotshoe.types.mesh import Axis


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One rank's experts.

    Attributes:
        experts: Their numbers in the model, by place.
        placement: For the operation; None where this rank holds all.
    """

    experts: tuple[int, ...]
    placement: Placement | None = None

    @property
    def held(self) -> int | None:
        """What `MoeSpec.held` is."""
        return None if self.placement is None else len(self.experts)

    def others(self, num_experts: int) -> list[int]:
        """Return the experts of other ranks alone."""
        return sorted(set(range(num_experts)) - set(self.experts))


def share_of(num_experts: int, axis: Axis, device: str) -> Share:
    """Give each rank neighboring experts, as many as the others, or one fewer.

    Raises:
        ConfigError: There are more ranks than experts.
    """
    if axis.size == 1:
        return Share(tuple(range(num_experts)))
    if axis.size > num_experts:
        raise ConfigError(
            f"enable_expert_parallel: {axis.size} ranks cannot share the model's {num_experts} "
            f"experts; use a tensor_parallel_size of {num_experts} or less"
        )
    parts = list(torch.arange(num_experts).tensor_split(axis.size))
    experts = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1)
    table = table_of(experts, num_experts, axis.rank).to(device)
    return Share(tuple(parts[axis.rank].tolist()), Placement(table))


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
