"""Logits processors of plugins: stages that the operator loads and requests give arguments to.

A processor changes the logits of a batch of rows at once. It is planned like core's own stages: as
long as the batch stays the same, the plan stays. It keeps nothing of a row between steps: whatever
changes with each token it reads from the token table on the device. So drafts, steps under way at
once and preemption are all the same to it. One that raises fails the requests that use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hotshoe.foreign import ForeignError, foreign, place_of
from hotshoe.sampling.rows import Ints, RowParameters, place
from hotshoe.sampling.stages import Step
from hotshoe.types.arguments import Argument

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """The tokens of the m sequences whose logits change, on the device.

    Attributes:
        token_table: [max_num_seqs, max_model_len + 1] integer; only read.
        rows: [m] int64, of the table.
        lengths: [m] int64, tokens known before this sample, prompt included.
        prompt_lengths: [m] int64.
    """

    token_table: Tensor
    rows: Tensor
    lengths: Tensor
    prompt_lengths: Tensor

    def last(self, count: int) -> Tensor:
        """Return the last tokens, oldest first, [m, count] int64; -1 stands before the first."""
        columns = torch.arange(-count, 0, device=self.rows.device) + self.lengths[:, None]
        tokens = self.token_table[self.rows[:, None], columns.clamp(min=0)].long()
        return tokens.where(columns >= 0, -1)


#: Changes logits [m, vocab_size] float32 in place.
Change: TypeAlias = Callable[[Tensor, Known], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a processor runs.

    Attributes:
        vocab_size: Width of the logits.
        device: Where they are.
        model_path: The model directory.
    """

    vocab_size: int
    device: torch.device
    model_path: str


class LogitsProcessor(Protocol):
    """What hook `hotshoe_logits_processors` names: a class, made once for an engine.

    Attributes:
        arguments: What requests may give, by name. A request that gives none is left alone, but by
            a `ProcessorForAll`.
    """

    arguments: Mapping[str, Argument]

    def __init__(self, surroundings: Surroundings) -> None:
        """Prepare what all requests share."""
        ...

    def plan(self, requests: Sequence[Mapping[str, Any]]) -> Change | None:
        """Prepare for a batch, and return what changes its logits at every step.

        Must not wait for the device, and neither must what it returns.

        Args:
            requests: Arguments of m sequences, defaults filled in. A sequence with k drafts comes
                k + 1 times in succession.

        Returns:
            None where nothing is to be changed.
        """
        ...


@runtime_checkable
class ProcessorForAll(LogitsProcessor, Protocol):
    """One that may say that requests which give nothing get the defaults.

    Attributes:
        for_all: They do.
    """

    for_all: bool


@dataclass(frozen=True, slots=True)
class Processing:
    """A planned processor; see `hotshoe.sampling.stages.Stage`.

    Attributes:
        label: Names the processor and its package.
        at: [m] batch positions on the host; on the device `where`, None if these are all.
        batch_rows: [m] on the host; on the device `rows`.
        prompt_lengths: [m] on the device.
    """

    label: str
    change: Change
    at: Ints
    where: Tensor | None
    batch_rows: Ints
    rows: Tensor
    prompt_lengths: Tensor

    def apply(self, logits: Tensor, step: Step) -> None:
        lengths = place(step.num_tokens[self.at], logits.device)
        known = Known(step.token_table, self.rows, lengths, self.prompt_lengths)
        some = logits if self.where is None else logits.index_select(0, self.where)
        try:
            with foreign():
                _change(self.change, some, known)
        except ForeignError as error:
            some.fill_(float("nan"))  # so that these rows fail, and no others
            text = f"{self.label} failed: {error}"
            _log.error("%s%s", text, place_of(error.__cause__ or error))
            step.blamed.update(dict.fromkeys(self.batch_rows.tolist(), text))
        if self.where is not None:
            logits.index_copy_(0, self.where, some)


class LoadedProcessor:
    """A processor of a plugin, which plans stages for the rows that use it.

    Args:
        label: Names it and its package.
        inner: The plugin's.
    """

    def __init__(self, label: str, inner: LogitsProcessor) -> None:
        self._label, self._inner = label, inner
        self._arguments = inner.arguments
        self._defaults = {name: argument.default for name, argument in inner.arguments.items()}
        self._for_all = isinstance(inner, ProcessorForAll) and bool(inner.for_all)

    def plan(self, params: RowParameters, rows: Ints, device: torch.device) -> Processing | None:
        """See `hotshoe.sampling.stages.Planner`."""
        asking = params.users["extra_args"][rows]
        if not (self._for_all or asking.any()):
            return None
        given = [params.lists[row].extra_args for row in rows]
        used = [self._for_all or not self._arguments.keys().isdisjoint(g) for g in given]
        at = np.flatnonzero(used)
        if not at.size:
            return None
        change = self._planned([self._filled(given[i]) for i in at])
        if change is None:
            return None
        picked = rows[at]
        everything = len(at) == len(rows)
        return Processing(
            self._label,
            change,
            at,
            None if everything else place(at, device),
            picked,
            place(picked, device),
            place(params.num_prompt_tokens[picked], device),
        )

    def _filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in given.items() if name in self._arguments}
        return self._defaults | own

    def _planned(self, requests: Sequence[Mapping[str, Any]]) -> Change | None:
        """Let the plugin plan; a failure is kept for the step, which fails the requests."""
        try:
            with foreign():
                return self._inner.plan(requests)
        except ForeignError as error:
            return partial(_fail, error.__cause__ or error)


def _change(change: Callable[..., object], logits: Tensor, known: Known) -> None:
    """Let a plugin change logits.

    Raises:
        TypeError: It returned others.
    """
    if (found := change(logits, known)) is not None:
        raise TypeError(f"it returned {type(found).__name__}; change logits in place")


def _fail(error: BaseException, logits: Tensor, known: Known) -> None:
    raise error
