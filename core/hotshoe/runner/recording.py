"""Records steps of requests that nobody sent: which of them, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import Changes
from hotshoe.runner.adapters import AdapterRows
from hotshoe.runner.forward import Forward, StagedInputs
from hotshoe.runner.graphs import BATCH_SIZES, Pieces, Recordings, graph_sizes, token_sizes
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.padding import padding_inputs
from hotshoe.runner.rows import Ints, StepInputs, alone
from hotshoe.runner.trees import RecordedTrees
from hotshoe.runner.verified import largest_size
from hotshoe.slots import CommunicatorOp, GraphOp, GraphSpec, SizedGraphOp, TransferOp

_log = logging.getLogger(__name__)
#: A fast device takes 0.03 s for a recording. One that takes so long would hold up requests.
RECORDING_S = 2.0
#: Times in a row that one size has to take so long; the first may wait for kernels.
TRIES = 2
#: Tokens of steps that verify drafts, whose number varies from step to step: few, as the first step
#: of each size waits.
SHARED_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, *range(192, 513, 64))
#: As `GraphOp.record`.
Record: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


def decode_sizes(op: GraphOp, limit: int) -> tuple[int, ...]:
    """Return the numbers of requests that decode steps are recorded for, the operation's own first.

    Args:
        op: Chosen candidate of slot `graph`.
        limit: Requests of the largest step; 0 to record none.
    """
    sizes = op.sizes if isinstance(op, SizedGraphOp) else BATCH_SIZES
    return graph_sizes(limit, sizes) if limit else ()


def sizes_of(
    op: GraphOp,
    spec: GraphSpec | None,
    tokens: tuple[int, int],
    channels: int,
    every: bool,
    shares: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of steps to record: `RunnerLimits.graph_sizes`, `.piece_sizes` and
    `.shared_sizes`.

    Args:
        op, spec: Chosen candidate of slot `graph`, and its specification; None to record nothing.
        tokens: Of the largest step, and of the largest that decodes or verifies drafts.
        channels, every: As `token_sizes` takes them.
        shares: As `hotshoe.layers.cache.share_keys` says.
    """
    if spec is None:
        return (), (), ()
    if not spec.pieces:
        return decode_sizes(op, spec.max_num_seqs), (), ()
    pieces = token_sizes(tokens[0], channels, every)
    if shares and tokens[1] > spec.max_num_seqs:
        shared = graph_sizes(tokens[1], SHARED_SIZES)
        return decode_sizes(op, spec.max_num_seqs), pieces, shared
    return decode_sizes(op, largest_size(spec.max_num_seqs, tokens[1])), pieces, ()


class Recorder:
    """Records steps: the largest first, so that all share its memory, then the smallest, with which
    most requests begin, and others when they are first wanted.

    Args:
        limits: Of the runner.
        stage: Brings a step to the device, and says whether it lies at fixed addresses.
        ops: What records, and what copies.
        adapters: Of rows; None for none. What a step's adapters are is set before it is padded, so
            that all sizes are recorded at once.
        ranks: Those that take part in each step, None for one, and the device where they agree.
            All sizes are recorded at once then, while there is memory for all of them: ranks cannot
            do without a recording that others have.
        every: Record all sizes at once in any case.
    """

    def __init__(
        self,
        limits: RunnerLimits,
        stage: Callable[[StepInputs], tuple[StagedInputs, bool]],
        ops: tuple[Record, TransferOp],
        adapters: AdapterRows | None,
        ranks: tuple[CommunicatorOp | None, torch.device],
        every: bool,
    ) -> None:
        self._row, self._block_size = limits.max_num_seqs, limits.block_size
        self._slots: Ints = np.array(limits.null_blocks, np.int32) * limits.block_size
        self._stage, (self._record, self._transfer) = stage, ops
        self._adapters, self._ranks = adapters, ranks
        self._every = every or adapters is not None or ranks[0] is not None

    def decodes(
        self,
        decodes: Recordings,
        changes: Changes,
        decode: Callable[[StagedInputs], Tensor],
        shared: bool = False,
    ) -> None:
        """Record steps of one token of each request, several of one sequence where `shared`."""

        def record(size: int) -> Callable[[], Tensor]:
            self._set_adapters([size], changes)
            inputs = self._inputs(np.ones(size, np.int32))
            if shared:
                inputs = replace(inputs, spans=alone(inputs.query_start_loc[1:]))
            staged = self._staged(inputs)
            return self._record(partial(decode, staged))

        self._begin(decodes, record, "verified tokens" if shared else "decoding requests")

    def in_pieces(
        self, mixed: Recordings, changes: Changes, forward: Forward, pieces: Pieces
    ) -> None:
        """Record steps that compute prompts, without their attention."""

        def record(size: int) -> Callable[[], Tensor]:
            self._set_adapters([size, 1], changes)
            inputs = self._inputs(np.ones(1, np.int32)).padded_tokens(size, self._slots)
            staged = self._staged(inputs)
            forward.set_pieces(inputs, staged)
            return pieces.record(partial(forward.in_pieces, staged))

        self._begin(mixed, record, "tokens beside prompts")

    def trees(self, trees: RecordedTrees | None, changes: Changes, forward: Forward) -> None:
        """Record steps with trees, where there are any."""
        if trees is None:
            return

        def record(size: int) -> Callable[[], Tensor]:
            self._set_adapters([size], changes)
            return self._record(partial(forward.decode, self._staged(trees.nobody(size))))

        self._begin(trees.recordings, record, "tokens of trees")

    def _begin(
        self, recordings: Recordings, record: Callable[[int], Callable[[], Tensor]], of: str
    ) -> None:
        """Record some sizes, and offer all, unless one takes too long.

        Args:
            of: The things that a size counts, for the log.
        """
        if not recordings.sizes:
            return
        recordings.record = record
        *others, largest = recordings.sizes
        recordings.make(largest)
        if others and self._is_slow(recordings, record, others[0]):
            recordings.offered = [largest]
            said = "recording a step takes more than %g s; those of fewer than %d %s are padded"
            _log.warning(said, RECORDING_S, largest, of)
            return
        recordings.offered = recordings.sizes
        for size in reversed(others if self._every else ()):
            recordings.make(size)
        if self._ranks[0] is None:  # ranks cannot do without a recording that others have
            recordings.record = partial(_if_there_is_memory, record, of)

    def _is_slow(
        self, recordings: Recordings, record: Callable[[int], Callable[[], Tensor]], size: int
    ) -> bool:
        """Record a size; return whether that takes too long, also once it waits for no kernel."""
        for _ in range(TRIES):
            began = time.monotonic()
            recordings.keep(size, record(size))
            if not self._anywhere(time.monotonic() - began > RECORDING_S):
                return False
        return True

    def _anywhere(self, own: bool) -> bool:
        """Return whether it is so on any rank: all record a size, or none."""
        group, device = self._ranks
        if group is None:
            return own
        return bool(group.all_reduce(torch.tensor([float(own)], device=device)).item())

    def _set_adapters(self, sizes: Iterable[int], changes: Changes) -> None:
        if self._adapters is not None:
            self._adapters.record(sizes, changes)

    def _inputs(self, lengths: Ints) -> StepInputs:
        return padding_inputs(lengths, self._row, self._slots, self._block_size)

    def _staged(self, inputs: StepInputs) -> StagedInputs:
        """Bring a step to the inbox's fixed addresses, and wait: its host memory is soon needed."""
        staged, in_place = self._stage(inputs)
        assert in_place, "the inbox holds every step that is recorded"
        self._transfer.download([])()
        return staged


def _if_there_is_memory(
    record: Callable[[int], Callable[[], Tensor]], of: str, size: int
) -> Callable[[], Tensor] | None:
    """Record a step; None where the device has no memory for that any more, which a start had."""
    try:
        return record(size)
    except torch.OutOfMemoryError:
        _log.warning(
            "no memory is left to record steps of %d %s; they are padded to more", size, of
        )
        return None
