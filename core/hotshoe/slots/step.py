"""A step as operations over a cache see it. Written by the runner, read by attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.trees import TreeNodes


@dataclass(slots=True)
class StepShape:
    """A step's shape, shared by all layers. Written by the runner.

    Attributes:
        query_start_loc: [num_reqs + 1] int32, first token of each request, then the end.
        seq_lens: [num_reqs] int32, tokens of each request including this step's.
        max_query_len: Most tokens of one request in this step; 1 is a pure decode step.
        max_seq_len: The longest of seq_lens.
        host_lens: Tokens of each request in this step, and seq_lens, on the host; None in a
            recorded step, whose lengths change from one repetition to the next.
        host_drafts: Of each request, the drafts that were accepted last and are still to enter
            its states, and those of this step, on the host; None where there are neither. For
            layers with states alone; their operations see steps without drafts.
        tree: The nodes of trees; None in a step without, which is all that `prepare` of slot
            `attention` ever sees.
        spans: [num_reqs, 2] int32, of a step of one token each: the first request that is a token
            of the same sequence, and the end of those. They stand side by side, in the order of
            their positions. None where each is of another sequence, or nobody asks.
    """

    num_reqs: int
    query_start_loc: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_seq_len: int
    host_lens: tuple[Sequence[int], Sequence[int]] | None = None
    host_drafts: tuple[Sequence[int], Sequence[int]] | None = None
    tree: TreeNodes | None = None
    spans: Tensor | None = None


@dataclass(slots=True)
class CacheView:
    """One cache group's part of a step.

    Attributes:
        block_table: [num_reqs, max_blocks_per_req] int32, may have a row stride. Entries that no
            query of the step reads may be the null block.
        slot_mapping: [num_tokens] int32, block_id * block_size + offset of every token.
        prepared: What the operation's `prepare` returned.
        settled: What made this, and the step's lengths, ended before the layers' first kernel, so
            that an operation may read both before it waits for the kernels in front of its own.
    """

    block_table: Tensor
    slot_mapping: Tensor
    prepared: Any = None
    settled: bool = False


@dataclass(slots=True)
class AttentionMetadata:
    """A step's shape and one group's view of it, for operations that plan nothing else.

    Attributes are those of `StepShape` and `CacheView`.
    """

    num_reqs: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int
    host_lens: tuple[Sequence[int], Sequence[int]] | None = None
    settled: bool = False
    spans: Tensor | None = None


@runtime_checkable
class SharingAttentionOp(Protocol):
    """An `AttentionOp` that may read the keys of several requests of one token once.

    Attributes:
        shares_keys: Whether it does, where a step has `spans`.
    """

    shares_keys: bool


def whole_step(shape: StepShape, view: CacheView) -> AttentionMetadata:
    """Prepare nothing: the `prepare` of operations that read a step as it is."""
    own = shape.num_reqs, shape.query_start_loc, shape.seq_lens
    longest = shape.max_query_len, shape.max_seq_len, shape.host_lens
    late = view.settled, shape.spans
    return AttentionMetadata(*own, view.block_table, view.slot_mapping, *longest, *late)
