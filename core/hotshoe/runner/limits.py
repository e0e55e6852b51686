"""What a runner is made with: limits that hold for all requests, and its own operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.sampling.stages import Planner
from hotshoe.slots import GraphOp, RestingGraphOp, SampleOp, TransferOp
from hotshoe.types.trees import DraftTree

#: `hotshoe.speculation.DeviceProposer.search`.
Search: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What holds for all requests: sizes of the runner's persistent state, and ends of sequences.

    Attributes:
        max_samples: Most samples of a step: one of each row, and one after each draft.
        null_blocks: For each cache group a block that no request owns.
        max_steps_in_flight: Steps started and not finished.
        graph_sizes: Padded batch sizes to record, ascending; empty for none.
        piece_sizes: Padded token counts of other steps to record in pieces, likewise.
        shared_sizes: Tokens of steps that verify drafts to record with `StepShape.spans`; empty
            where the recordings of `graph_sizes` are for them, too.
        eos_token_ids: Forbidden until a request's min_tokens.
        lags: States are behind accepted drafts, and learn of them in `StepShape.host_drafts`.
        tree: The shape of drafts that may be trees.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    max_logprobs: int
    max_samples: int
    null_blocks: tuple[int, ...]
    max_steps_in_flight: int = 1
    graph_sizes: tuple[int, ...] = ()
    piece_sizes: tuple[int, ...] = ()
    shared_sizes: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    lags: bool = False
    tree: DraftTree | None = None


@dataclass(frozen=True, slots=True)
class Operations:
    """The chosen candidates that the runner itself calls, and what plugins add to it.

    Attributes:
        processors: Of logits.
        search: Finds drafts on the device; None where nobody does.
    """

    sample: SampleOp
    transfer: TransferOp
    graph: GraphOp
    processors: Sequence[Planner] = ()
    search: Search | None = None

    def rest(self) -> GraphOp | None:
        """Return the operation that records again behind a sleep, with no memory; None for none."""
        if not isinstance(self.graph, RestingGraphOp):
            return None
        self.graph.rest()
        return self.graph


MakeProcessors: TypeAlias = Callable[[int, torch.device], Sequence[Planner]]


def no_processors(vocab_size: int, device: torch.device) -> Sequence[Planner]:
    """Make none."""
    return ()
