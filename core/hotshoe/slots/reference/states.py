"""What references of blocks with states have in common: a step's plan, and the convolution.

A sequence with one token takes one step of its recurrence. One with more goes chunk by chunk, the
next chunks of all sequences at once. Chunks end where a state is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.slots.state_specs import (
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from hotshoe.slots.step import CacheView, StepShape

#: Most tokens of a chunk, whose matrix has the square of their number.
CHUNK = 64

StateSpec: TypeAlias = (
    "StateSpaceSpec | SelectiveScanSpec | RgLruSpec | ShortConvSpec | GatedDeltaSpec"
)
States: TypeAlias = "tuple[Tensor, Tensor]"
#: (states, operands) to (results, states); a chunk is told which of its tokens there are.
Step: TypeAlias = "Callable[[Tensor, tuple[Tensor, ...]], States]"
Chunk: TypeAlias = "Callable[[Tensor, tuple[Tensor, ...], Tensor], States]"


@dataclass(frozen=True, slots=True)
class Chunks:
    """The next chunk of every sequence that has one; r of them, up to l tokens each.

    Attributes:
        rows: [r] the sequences.
        tokens: [r, l] places in the step; behind a chunk's end that of its last token.
        valid: [r, l] whether there is a token.
        kept: [k] which of the r end where a state is kept.
        blocks: [k] where.
    """

    rows: Tensor
    tokens: Tensor
    valid: Tensor
    kept: Tensor
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of n sequences and t tokens, planned once for all layers.

    Attributes:
        known: [n] whether a sequence has a state.
        reads: [n] the block of that state.
        taps: [t, conv_width] for each token the inputs that the convolution sees, as places in the
            inputs that n sequences carried on, n * (conv_width - 1) of them, then the step's own.
        kept: [w, conv_width - 1] the last inputs up to each place where a state is kept, likewise.
        writes: [w] the blocks of those.
        steps: [m] sequences with one token, the places of these, and where states go; None if all
            have one.
        chunks: Of the other sequences, in their order.
    """

    known: Tensor
    reads: Tensor
    taps: Tensor
    kept: Tensor
    writes: Tensor
    steps: tuple[Tensor, Tensor, Tensor] | None
    chunks: Sequence[Chunks]


class Planner:
    """Plans steps over states; see `hotshoe.slots.StateSpaceOp.prepare`.

    Args:
        spec: Of the block.
        chunk: Most tokens of a chunk.
    """

    def __init__(self, spec: StateSpec, chunk: int | None = None) -> None:
        self._spec, self._chunk = spec, chunk or CHUNK

    def prepare(self, shape: StepShape, view: CacheView) -> Plan:
        """Plan a step. One in which every sequence has one token is planned on the device alone."""
        starts, lens = shape.query_start_loc.long(), shape.seq_lens.long()
        counts, ends = starts.diff(), starts[1:] - 1
        known = lens > counts
        rows = torch.arange(len(lens), device=lens.device)
        reads = self._blocks(view, rows, (lens - counts - 1).clamp(min=0))
        if shape.max_query_len == 1:
            return Plan(
                known,
                reads,
                self._inputs(rows, rows, starts, 0),
                self._inputs(rows, rows, starts, 1),
                self._blocks(view, rows, lens - 1),
                None,
                (),
            )
        owners = torch.repeat_interleave(rows, counts)
        tokens = torch.arange(len(owners), device=lens.device)
        segments = _segments(shape, self._spec)
        last = torch.tensor([end - 1 for _, _, end in segments], device=lens.device)
        owner = torch.tensor([row for row, _, _ in segments], device=lens.device)
        writes = self._blocks(view, owner, lens[owner] - 1 - (ends[owner] - last))
        single = rows[counts == 1]
        return Plan(
            known,
            reads,
            self._inputs(tokens, owners, starts, 0),
            self._inputs(last, owner, starts, 1),
            writes,
            (single, ends[single], self._blocks(view, single, lens[single] - 1)),
            tuple(_chunks(segments, writes, self._chunk)),
        )

    def _blocks(self, view: CacheView, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the blocks of tokens at positions of sequences."""
        columns = positions // self._spec.block_size
        if self._spec.checkpoints == "none":
            columns = torch.zeros_like(columns)
        return view.block_table[rows, columns].long()

    def _inputs(self, tokens: Tensor, owners: Tensor, starts: Tensor, first: int) -> Tensor:
        """Return the places of the convolution's inputs up to each token, from the first-th on."""
        width = self._spec.conv_width
        back = torch.arange(first - width + 1, 1, device=tokens.device)
        places = tokens[:, None] + back
        begin, carried = starts[owners][:, None], len(starts[1:]) * (width - 1)
        before = owners[:, None] * (width - 1) + (width - 1) + places - begin
        return torch.where(places < begin, before, carried + places)


def _segments(shape: StepShape, spec: StateSpec) -> list[tuple[int, int, int]]:
    """Return sequence, first and last + 1 token of each stretch behind which a state is kept."""
    if shape.host_lens is not None:
        counts, lens = shape.host_lens
    else:
        counts, lens = shape.query_start_loc.diff().tolist(), shape.seq_lens.tolist()
    found: list[tuple[int, int, int]] = []
    begin, size = 0, spec.block_size
    for row, (count, length) in enumerate(zip(counts, lens, strict=True)):
        inner = range(size - (length - count) % size, count, size)
        edges = [0, *(inner if spec.checkpoints == "all" else ()), count]
        found += [(row, begin + a, begin + b) for a, b in pairwise(edges)]
        begin += count
    return found


def _chunks(
    segments: Sequence[tuple[int, int, int]], writes: Tensor, size: int
) -> Iterator[Chunks]:
    """Cut sequences of several tokens into chunks, and yield the first of each, the second, ..."""
    cuts: dict[int, list[tuple[int, int, int]]] = {}
    for number, (row, begin, end) in enumerate(segments):
        for a, b in pairwise([*range(begin, end, size), end]):
            cuts.setdefault(row, []).append((a, b, number if b == end else -1))
    several = {row: found for row, found in cuts.items() if found[-1][1] - found[0][0] > 1}
    device = writes.device
    for i in range(max(map(len, several.values()), default=0)):
        having = [(row, *found[i]) for row, found in several.items() if i < len(found)]
        rows, begins, ends, numbers = torch.tensor(having, device=device).unbind(1)
        tokens = begins[:, None] + torch.arange(max(b - a for _, a, b, _ in having), device=device)
        kept = torch.nonzero(numbers >= 0).flatten()
        valid = tokens < ends[:, None]
        tokens = torch.minimum(tokens, ends[:, None] - 1)
        yield Chunks(rows, tokens, valid, kept, writes[numbers[kept]])


def convolve(
    inputs: Tensor, cache: Tensor, plan: Plan, taps: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolve [t, conv_size] float32 with taps [conv_size, conv_width]; keep the last inputs."""
    carried = torch.where(plan.known[:, None, None], cache[plan.reads].float(), 0.0)
    source, taps = torch.cat((carried.flatten(0, 1), inputs)), taps.float()
    out = sum(source[plan.taps[:, j]] * taps[:, j] for j in range(taps.shape[1]))
    assert isinstance(out, Tensor)
    cache[plan.writes] = source[plan.kept].to(cache.dtype)
    return out if bias is None else out + bias.float()


def advance(
    operands: tuple[Tensor, ...], out: Tensor, cache: Tensor, plan: Plan, step: Step, chunk: Chunk
) -> Tensor:
    """Run a recurrence over a step's tokens, and keep its states.

    Args:
        operands: Each [t, ...].
        out: [t, ...], filled.
        cache: [blocks, ...].
        plan: Of the step.
        step: Takes one token of each sequence.
        chunk: Takes up to l tokens of each, and which of them there are.
    """
    known = plan.known.view(-1, *[1] * (cache.dim() - 1))
    state = torch.where(known, cache[plan.reads].float(), 0.0)
    if plan.steps is None:
        result, state = step(state, operands)
        cache[plan.writes] = state.to(cache.dtype)
        return result
    rows, at, blocks = plan.steps
    out[at], state[rows] = step(state[rows], tuple(part[at] for part in operands))
    cache[blocks] = state[rows].to(cache.dtype)
    for part in plan.chunks:
        at, rows = part.tokens, part.rows
        result, state[rows] = chunk(state[rows], tuple(o[at] for o in operands), part.valid)
        out[at[part.valid]] = result[part.valid]
        cache[part.blocks] = state[rows[part.kept]].to(cache.dtype)
    return out


def decays(total: Tensor) -> Tensor:
    """Return what is left of token j at token i >= j: [r, i, j, ...] of log totals [r, l, ...].

    Exponents are sums of decays from one token to another. As differences of running totals they
    need float64: the totals grow where nothing is left to decay.
    """
    between = total[:, :, None] - total[:, None, :]
    causal = torch.ones(between.shape[1:3], dtype=torch.bool, device=total.device).tril()
    causal = causal.view(*causal.shape, *[1] * (between.dim() - 3))
    return torch.exp(between.masked_fill(~causal, -torch.inf)).float()
