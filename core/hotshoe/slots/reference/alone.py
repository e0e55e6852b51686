"""References that compute each token alone, so that none depends on its neighbors, to the last bit.

A reference leaves a product to PyTorch, whose sums go another way for another number of rows. With
`--batch-invariant` a reference is wrapped here, which is slow. Slots name their wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots.mixture import Placement
from hotshoe.slots.step import AttentionMetadata, CacheView, StepShape


class Alone:
    """An operation that calls another one once for each token.

    Args:
        inner: The other.
        rows: Places of the arguments that have a row for each token.
    """

    def __init__(self, inner: Any, rows: Sequence[int]) -> None:
        vars(self).update(_inner=inner, _rows=frozenset(rows))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set it on the other operation, as the scales of a cache."""
        setattr(self._inner, name, value)

    def __call__(self, *arguments: Any) -> Any:
        first = arguments[0]
        count = len(first[0] if isinstance(first, tuple) else first)
        if count < 2:
            return self._inner(*arguments)
        given = list(enumerate(arguments))
        return _joined(
            [
                self._inner(*(_row(a, i) if at in self._rows else a for at, a in given))
                for i in range(count)
            ]
        )


class MoeAlone(Alone):
    """A mixture whose experts adapters may change, of each token alone as well."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, (0, 1, 3))  # x, logits, and whose turn it is among places

    def adapted(self, x: Tensor, logits: Tensor, *rest: Any) -> Tensor:
        """See `hotshoe.slots.AdaptableMoeOp`."""
        correction, placement, between = rest
        found = []
        for i in range(len(x)):

            def shifted(
                name: str, y: Tensor, x: Tensor, tokens: Tensor, experts: Tensor, at: int = i
            ) -> None:
                between(name, y, x, tokens + at, experts)

            row = _row(x, i), _row(logits, i), correction, _row(placement, i)
            found.append(self._inner.adapted(*row, shifted))
        return torch.cat(found)


class AttentionAlone(Alone):
    """Attention that sees each query as a request of its own, which ends with that query."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, ())

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step of as many requests as it has tokens."""
        return one_by_one(self._inner.prepare(shape, view))

    def __call__(self, *arguments: Any) -> Any:
        return self._inner(*arguments)


def one_by_one(step: AttentionMetadata) -> AttentionMetadata:
    """Return a step whose queries are requests of one token."""
    device = step.query_start_loc.device
    starts, lengths = step.query_start_loc.tolist(), step.seq_lens.tolist()
    counts = [starts[i + 1] - starts[i] for i in range(step.num_reqs)]
    ends = [n for c, length in zip(counts, lengths, strict=False) for n in _last(c, length)]
    owners = [i for i, count in enumerate(counts) for _ in range(count)]
    return AttentionMetadata(
        num_reqs=len(ends),
        query_start_loc=torch.arange(len(ends) + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(ends, dtype=torch.int32, device=device),
        block_table=step.block_table[torch.tensor(owners, dtype=torch.long, device=device)],
        slot_mapping=step.slot_mapping,
        max_query_len=1,
        max_seq_len=step.max_seq_len,
        host_lens=([1] * len(ends), ends),
    )


def _last(count: int, length: int) -> range:
    """Return the lengths that a request has with each of its last tokens."""
    return range(length - count + 1, length + 1)


def same(inner: Any) -> Any:
    """Return an operation that computes each row by itself already."""
    return inner


first = partial(Alone, rows=(0,))
first_two = partial(Alone, rows=(0, 1))
#: Of `rotary_and_cache`: q, k and v, positions, and places in the cache.
written = partial(Alone, rows=(0, 1, 4))
#: Of `sample`: logits and everything that is said of them.
sampled = partial(Alone, rows=range(6))


def _row(argument: Any, i: int) -> Any:
    if isinstance(argument, Placement):
        turn = i % len(argument.table)
        return Placement(argument.table[turn : turn + 1], argument.counts)
    if argument is None:
        return None
    if isinstance(argument, tuple):
        return tuple(_row(part, i) for part in argument)
    return argument[i : i + 1]


def _joined(found: Sequence[Any]) -> Any:
    """Join results row by row; of a pair of pairs, each of the four."""
    if isinstance(found[0], Tensor):
        return torch.cat(list(found))
    return tuple(_joined(parts) for parts in zip(*found, strict=True))
