"""Ranks of adapters: the check against the highest, and those of each place on the device.

Places have room for the highest rank. Operations that compute on the host read here how much of it
an adapter uses, and that it leaves a matrix as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError

if TYPE_CHECKING:
    from hotshoe.layers.adapters import Factors


def check_factors(name: str, factors: Factors, sizes: tuple[int, int], max_rank: int) -> None:
    """Refuse low-rank factors of another shape.

    Args:
        name: Of the matrix.
        factors: Of it.
        sizes: Columns of a and rows of b.
        max_rank: Highest rank.

    Raises:
        CheckpointError: They do not fit the matrix, or their rank is above the limit.
    """
    rank = len(factors.a)
    found = (tuple(factors.a.shape), tuple(factors.b.shape))
    if found != ((rank, sizes[0]), (sizes[1], rank)):
        raise CheckpointError(
            f"the adapter's factors of {name} have shapes {list(found[0])} and {list(found[1])}, "
            f"but this model's matrix is {[sizes[1], sizes[0]]}; it was made for another model"
        )
    if rank > max_rank:
        raise CheckpointError(
            f"the adapter's rank is {rank}, above --max-lora-rank {max_rank}; raise it"
        )


def refuse_other_forms(name: str, factors: Factors) -> None:
    """Refuse a matrix that comes whole, and magnitudes, where low-rank factors alone are served.

    Raises:
        CheckpointError: There are such.
    """
    for given, what in ((factors.whole, "a whole"), (factors.magnitude, "a magnitude of")):
        if given is not None:
            raise CheckpointError(
                f"the adapter has {what} {name}, of which low-rank factors alone are served; "
                "train it without, or merge it into the model"
            )


class Ranks:
    """The rank of each matrix in each place, 0 where its adapter leaves the matrix as it is.

    Args:
        num_places: Of adapters on the device.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._columns: dict[str, int] = {}
        self._count = 0  # of columns: a matrix of several products has more than one
        self._kept: dict[str, Tensor] = {}
        self._placed: Tensor | None = None  # until the model is built

    def expect(self, names: Sequence[str]) -> None:
        """Take the matrices of one product, in their order."""
        self._columns |= {name: self._count + i for i, name in enumerate(names)}
        self._count += len(names)

    def of(self, names: Sequence[str]) -> Tensor:
        """Return the ranks [num_places, len(names)] int32 of one product's matrices, on the host.

        Its memory stays, and shows the adapter in each place.
        """
        first = self._columns[names[0]]
        return self._all[:, first : first + len(names)]

    @property
    def _all(self) -> Tensor:
        if self._placed is None:
            self._placed = torch.zeros(self._num_places, self._count, dtype=torch.int32)
        return self._placed

    def keep(self, name: str, ranks: Mapping[str, int]) -> None:
        """Remember the ranks of an adapter by matrix; matrices of other layers are left."""
        row = torch.zeros(self._count, dtype=torch.int32)
        for matrix, rank in ranks.items():
            if matrix in self._columns:
                row[self._columns[matrix]] = rank
        self._kept[name] = row

    def drop(self, name: str) -> None:
        """Forget an adapter, if it is kept."""
        self._kept.pop(name, None)

    def put(self, place: int, name: str) -> None:
        """Show the ranks of an adapter in a place."""
        self._all[place].copy_(self._kept[name])
