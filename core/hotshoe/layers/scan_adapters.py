"""Adapters of the matrices amid a selective scan, which no product of its own multiplies by.

The scan gets W + scale * b a in the place of W. A step of several adapters is several scans: each
takes the sequences of one adapter, which have blocks of their own. Such steps are not recorded.
Matrices are small beside the block's others, so sums are made when an adapter's first step comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers.adapter_ranks import check_factors, refuse_other_forms
from hotshoe.layers.adapters import AdapterTable, Changes, Factors
from hotshoe.layers.landing import Piece
from hotshoe.layers.magnitudes import Gain
from hotshoe.slots import CacheView, StepShape

if TYPE_CHECKING:
    from hotshoe.layers.context import BuildContext

#: Of sequences whose adapter leaves these matrices as they are, and of those without one.
PLAIN = -1


class Part(NamedTuple):
    """Sequences of a step whose weights are equal.

    Attributes:
        tokens: Their places in the step.
        shape, view: Of them alone.
        place: Of their adapter, or `PLAIN`.
    """

    tokens: Tensor
    shape: StepShape
    view: CacheView
    place: int


class AdaptedScan:
    """What adapters change of one scan; see `Adapted`.

    Args:
        ctx: The build context.
        table: Who has adapters.
        matrices: Name, rows and columns of each, by its part in the scan's weights.
    """

    def __init__(
        self, ctx: BuildContext, table: AdapterTable, matrices: Mapping[str, tuple[str, int, int]]
    ) -> None:
        self._table, self._matrices, self._dtype = table, dict(matrices), ctx.torch_dtype
        self._placed: dict[int, dict[str, Factors]] = {}
        self._sums: dict[int, dict[str, Tensor]] = {}
        table.weights = ctx.weights
        for index, (name, _, _) in enumerate(self._matrices.values()):
            table.layers[name] = (self, index)
            table.changes[name] = Changes.APART
        table.ranks.expect([name for name, _, _ in self._matrices.values()])

    def summed(self, place: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the changed ones of the scan's weights for the adapter in a place."""
        if place not in self._sums:
            self._sums[place] = {
                part: (weights[part].float() + (b.float() @ a.float()).to(weights[part].device)).to(
                    weights[part].dtype
                )
                for part, (a, b, *_) in self._placed.get(place, {}).items()
            }
        return self._sums[place]

    def parts(self, num_tokens: int, shape: StepShape, view: CacheView) -> list[Part]:
        """Divide a step by adapters; nothing where no sequence has one of these matrices."""
        use = self._table.uses.get(num_tokens)
        if use is None or use.changes != Changes.APART or shape.host_lens is None:
            return []
        counts = np.array(shape.host_lens[0], np.int64)
        starts = np.cumsum(counts) - counts
        places = use.host.numpy()[starts]
        places = np.where(np.isin(places, list(self._placed)), places, PLAIN)
        if (places == PLAIN).all():
            return []
        return list(_parts(places, starts, shape, view))

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse factors of another shape, and what is not built.

        Raises:
            CheckpointError: They do not fit the matrix, their rank is above the limit, or they are
                none.
        """
        refuse_other_forms(name, factors)
        _, rows, columns = self._at(index)[1]
        check_factors(name, factors, (columns, rows), max_rank)

    def host_bytes(self, index: int, factors: Factors) -> int:
        """Return the bytes that the host keeps."""
        return (factors.a.numel() + factors.b.numel()) * self._dtype.itemsize

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of both factors, in the model's type; b is scaled."""
        b = factors.b.float() * factors.scale
        return Factors(factors.a.to(self._dtype, copy=True), b.to(self._dtype))

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]:
        """Let nothing come by itself: sums are made of the weights."""
        return ()

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]:
        """Measure nothing: there are no magnitudes."""
        return {}

    def settle(self) -> None:
        """Forget sums, as the weights have changed."""
        self._sums.clear()

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None:
        """Take the factors of the adapter in a place."""
        self._sums.pop(place, None)
        part = self._at(index)[0]
        held = self._placed.pop(place, {})
        held.pop(part, None)
        if factors is not None:
            held[part] = factors
        if held:
            self._placed[place] = held

    def _at(self, index: int) -> tuple[str, tuple[str, int, int]]:
        return list(self._matrices.items())[index]


def _parts(
    places: np.ndarray[tuple[int], np.dtype[np.int32]],
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    shape: StepShape,
    view: CacheView,
) -> Iterator[Part]:
    """Yield the sequences of each place."""
    assert shape.host_lens is not None
    device = view.block_table.device
    for place in np.unique(places).tolist():
        rows = np.flatnonzero(places == place).tolist()
        counts, lens = ([values[row] for row in rows] for values in shape.host_lens)
        drafts = None
        if shape.host_drafts is not None:
            accepted, own = ([values[row] for row in rows] for values in shape.host_drafts)
            drafts = accepted, own
        first = [int(starts[row]) for row in rows]
        spans = [torch.arange(i, i + n) for i, n in zip(first, counts, strict=True)]
        tokens, at = torch.cat(spans).to(device), torch.tensor(rows, device=device)
        begins = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=device)
        part = StepShape(
            len(rows), begins, shape.seq_lens[at], max(counts), max(lens), (counts, lens), drafts
        )
        yield Part(tokens, part, CacheView(view.block_table[at], view.slot_mapping[tokens]), place)
