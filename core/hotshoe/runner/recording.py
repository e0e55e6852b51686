"""Records steps of requests that nobody sent, for some time, the largest first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import Changes
from hotshoe.runner.adapters import AdapterRows
from hotshoe.runner.forward import Forward, StagedInputs
from hotshoe.runner.graphs import Pieces, Recordings
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.padding import padding_inputs
from hotshoe.runner.rows import Ints, StepInputs
from hotshoe.slots import CommunicatorOp, TransferOp

_log = logging.getLogger(__name__)
#: Recording 33 sizes takes 4 s on a fast device; one that needs far longer serves with fewer.
RECORDING_S = 60.0
#: As `GraphOp.record`.
Record: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


class Allowance:
    """Time for all recordings of a start, which begins now.

    Args:
        seconds: How much.
        group: The ranks that take part in each step; None for one.
        device: Where they agree.
    """

    def __init__(self, seconds: float, group: CommunicatorOp | None, device: torch.device) -> None:
        self._seconds, self._group, self._device = seconds, group, device
        self._begin = time.monotonic()

    def sizes(self, recordings: Recordings, of: str) -> Iterator[int]:
        """Yield the sizes to record, the largest first, until the time is over.

        Args:
            recordings: Takes each before the next is yielded.
            of: The things that a size counts, for the log.
        """
        for size in reversed(recordings.sizes):
            least = recordings.size_for(1)
            if least is not None and self._is_over():
                _log.warning(
                    "recording steps took %g s; those of up to %d %s are padded to %d",
                    *(self._seconds, size, of, least),
                )
                return
            yield size

    def _is_over(self) -> bool:
        over = time.monotonic() - self._begin >= self._seconds
        if self._group is None:
            return over
        # Ranks take part in each other's steps: all record a size, or none.
        own = torch.tensor([float(over)], device=self._device)
        return bool(self._group.all_reduce(own).item())


class Recorder:
    """Records steps for all sizes of some recordings.

    Args:
        limits: Of the runner.
        stage: Brings a step to the device, and says whether it lies at fixed addresses.
        ops: What records, and what copies.
        adapters: Of rows; None for none.
        allowance: Time for all of it.
    """

    def __init__(
        self,
        limits: RunnerLimits,
        stage: Callable[[StepInputs], tuple[StagedInputs, bool]],
        ops: tuple[Record, TransferOp],
        adapters: AdapterRows | None,
        allowance: Allowance,
    ) -> None:
        self._row, self._block_size = limits.max_num_seqs, limits.block_size
        self._slots: Ints = np.array(limits.null_blocks, np.int32) * limits.block_size
        self._stage, (self._record, self._transfer) = stage, ops
        self._adapters, self._allowance = adapters, allowance

    def decodes(
        self, decodes: Recordings, changes: Changes, decode: Callable[[StagedInputs], Tensor]
    ) -> None:
        """Record steps of one token of each request."""
        for size in self._sizes(decodes, "decoding requests", changes):
            staged = self._staged(self._inputs(np.ones(size, np.int32)))
            decodes.keep(size, self._record(partial(decode, staged)))

    def in_pieces(
        self, mixed: Recordings, changes: Changes, forward: Forward, pieces: Pieces
    ) -> None:
        """Record steps that compute prompts, without their attention."""
        for size in self._sizes(mixed, "tokens beside prompts", changes):
            inputs = self._inputs(np.ones(1, np.int32)).padded_tokens(size, self._slots)
            staged = self._staged(inputs)
            forward.set_pieces(inputs, staged)
            mixed.keep(size, pieces.record(partial(forward.in_pieces, staged)))

    def _sizes(self, recordings: Recordings, of: str, changes: Changes) -> Iterator[int]:
        """Go through sizes, each with what adapters may change."""
        for size in self._allowance.sizes(recordings, of):
            if self._adapters is not None:
                self._adapters.record(size, changes)
            yield size

    def _inputs(self, lengths: Ints) -> StepInputs:
        return padding_inputs(lengths, self._row, self._slots, self._block_size)

    def _staged(self, inputs: StepInputs) -> StagedInputs:
        """Bring a step to the inbox's fixed addresses, and wait: its host memory is soon needed."""
        staged, in_place = self._stage(inputs)
        assert in_place, "the inbox holds every step that is recorded"
        self._transfer.download([])()
        return staged
