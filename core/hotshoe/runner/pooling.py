"""Rows that make a vector of their prompt instead of sampling: what they want, and sums so far.

The runner gives the hidden states of a whole step; vectors are finished on the host, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.runner.rows import StepInputs
from hotshoe.types import NewRow, Pooling, StepResult
from hotshoe.types.pooling import POOLING_TASKS, PoolingKind

Vector = npt.NDArray[np.float64]
#: The task whose head sees the states of each step at once.
BY_TOKEN = "token_classify"
#: What a vector of zeros is divided by.
TINY = 1e-12
NOT_FINITE = "the hidden states hold NaN or infinity, so no vector can be made of them"


def softmax(x: Vector) -> Vector:
    """Return exp(x) over its sum, row by row."""
    raised: Vector = np.exp(x - x.max(-1, keepdims=True))
    found: Vector = raised / raised.sum(-1, keepdims=True)
    return found


def sigmoid(x: Vector) -> Vector:
    """Return 1 / (1 + exp(-x)), without overflow."""
    found: Vector = np.exp(-np.logaddexp(0.0, -x))
    return found


ACTIVATIONS: dict[str, Callable[[Vector], Vector]] = {"softmax": softmax, "sigmoid": sigmoid}


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows of one task whose vectors a step completes: [n, size] float32, how many of them each row
    has, and how it wants them."""

    rows: Sequence[int]
    pooling: Sequence[Pooling]
    vectors: Tensor
    counts: Sequence[int]

    def book(self, result: StepResult, vectors: Tensor) -> None:
        """Put the host form of the vectors into a step's result; those not finite have failed."""
        parts = torch.split(vectors, list(self.counts))
        for row, pooling, part in zip(self.rows, self.pooling, parts, strict=True):
            kept = part.numpy()[:, : pooling.dimensions].astype(np.float64)
            if not np.isfinite(kept).all():
                result.failed[row] = NOT_FINITE
                continue
            if pooling.normalize:
                kept /= np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), TINY)
            if pooling.activation is not None:
                kept = ACTIVATIONS[pooling.activation](kept)
            result.pooled[row] = kept.astype("<f4").tobytes()


#: What sums of a prompt's states are divided by, from its length.
DIVISORS: Mapping[str, Callable[[int], float]] = {
    "mean": float,
    "mean_sqrt_len": math.sqrt,
    "weighted_mean": lambda length: length * (length + 1) / 2,
}


def folded(kind: PoolingKind, own: Tensor, before: Tensor | None, first: int = 0) -> Tensor:
    """Return what a prompt's states make so far: their sum for a mean, their maximum, one of them.

    Args:
        own: [n, hidden_size] of a step.
        before: What earlier steps have made; None for none.
        first: The position of the first of them.
    """
    if kind == "last":
        return own[-1].float()
    if kind == "all":
        return own.float() if before is None else torch.cat((before, own.float()))
    if kind == "cls":
        return own[0].float() if before is None else before
    if kind not in DIVISORS:
        found = own.amax(0).float()
        return found if before is None else torch.maximum(before, found)
    rows = own.float()
    if kind == "weighted_mean":
        rows = rows * torch.arange(first + 1, first + len(own) + 1, device=own.device)[:, None]
    return rows.sum(0) if before is None else before + rows.sum(0)


class PoolingRows:
    """Which rows pool, and how. What rows have made so far is kept from step to step."""

    def __init__(self) -> None:
        self._pooling: dict[int, Pooling] = {}
        self._made: dict[int, Tensor] = {}
        self._steps: dict[int, npt.NDArray[np.int64]] = {}

    def set_row(self, new: NewRow) -> None:
        """Take over what a new row wants."""
        for held in (self._made, self._pooling, self._steps):
            held.pop(new.row, None)
        if new.pooling is not None:
            self._pooling[new.row] = new.pooling
            if (step := new.pooling.step_token) is not None:
                self._steps[new.row] = np.flatnonzero(np.asarray(new.token_ids) == step)

    def among(self, inputs: StepInputs) -> list[int]:
        """Return the places of a step's requests that pool."""
        return [i for i, row in enumerate(inputs.rows.tolist()) if row in self._pooling]

    def without(self, inputs: StepInputs) -> StepInputs:
        """Return a step in which no row samples that pools."""
        sampling = [row not in self._pooling for row in inputs.sample_rows.tolist()]
        kept = np.flatnonzero(sampling)
        return replace(
            inputs,
            sample_at=inputs.sample_at[kept],
            sample_rows=inputs.sample_rows[kept],
            sample_lens=inputs.sample_lens[kept],
        )

    def take(
        self,
        inputs: StepInputs,
        places: Sequence[int],
        hidden: Tensor,
        head: Callable[[Tensor, str], Tensor],
    ) -> list[PooledRows]:
        """Take in a step's hidden states, and return the vectors that it completes, by task.

        Args:
            inputs: The step before `without`.
            places: From `among`.
            hidden: [num_tokens, hidden_size] of the whole step.
            head: Maps pooled states [n, hidden_size] to vectors of a task.
        """
        ending, found = set(inputs.sample_rows.tolist()), dict[int, Tensor]()
        for row, length, own, states in self._entering(inputs, places, hidden, head):
            kind = self._pooling[row].kind
            made = folded(kind, states, self._made.pop(row, None), length - own)
            if row in ending:
                found[row] = made / DIVISORS[kind](length) if kind in DIVISORS else made
            else:
                self._made[row] = made
        return [
            self._of_task(
                rows, [found[row].reshape(-1, found[row].size(-1)) for row in rows], head, task
            )
            for task in POOLING_TASKS
            if (rows := [row for row in found if self._pooling[row].task == task])
        ]

    def _entering(
        self,
        inputs: StepInputs,
        places: Sequence[int],
        hidden: Tensor,
        head: Callable[[Tensor, str], Tensor],
    ) -> Iterator[tuple[int, int, int, Tensor]]:
        """Yield of each place its row, its length, its number of tokens in this step, and their
        states, or their logits where tokens have classes: few numbers are kept of a long prompt."""
        entering = []
        for i in places:
            row, length = int(inputs.rows[i]), int(inputs.seq_lens[i])
            own = hidden[int(inputs.query_start_loc[i]) : int(inputs.query_start_loc[i + 1])]
            count = len(own)
            if row in self._steps:
                at = self._steps[row] - (length - count)
                kept = torch.from_numpy(at[(at >= 0) & (at < count)])
                own = own[kept.to(own.device, non_blocking=True)]
            entering.append((row, length, count, own))
        classed = [own for row, _, _, own in entering if self._by_token(row)]
        logits: Iterator[Tensor] = iter(())
        if classed:
            made = head(torch.cat(classed), BY_TOKEN)
            logits = iter(torch.split(made, [len(own) for own in classed]))
        for row, length, count, own in entering:
            yield row, length, count, next(logits) if self._by_token(row) else own

    def _by_token(self, row: int) -> bool:
        return self._pooling[row].task == BY_TOKEN

    def _of_task(
        self,
        rows: Sequence[int],
        states: Sequence[Tensor],
        head: Callable[[Tensor, str], Tensor],
        task: str,
    ) -> PooledRows:
        wanted, counts = [self._pooling[row] for row in rows], [len(own) for own in states]
        whole = torch.cat(list(states))
        return PooledRows(rows, wanted, whole if task == BY_TOKEN else head(whole, task), counts)
