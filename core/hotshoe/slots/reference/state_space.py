"""Reference of slot `state_space`: Mamba-2's convolution, scan, gate and norm, float32 inside.

A sequence with one token takes one step of the recurrence. One with more is scanned chunk by chunk,
the next chunks of all sequences at once: within a chunk the recurrence is a masked matrix product,
between chunks its state goes on. Chunks end where a state is kept.

Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import StateSpaceWeights
from hotshoe.slots.operations import CacheView, StepShape
from hotshoe.slots.reference.activation import ACTIVATIONS
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.specs import StateSpaceSpec

#: Most tokens of a chunk, whose matrix has the square of their number.
CHUNK = 64


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


class StateSpace:
    """See `hotshoe.slots.StateSpaceOp`."""

    def __init__(self, spec: StateSpaceSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._activation = ACTIVATIONS[spec.activation]

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
            tuple(_chunks(segments, writes)),
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

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Plan,
        weights: StateSpaceWeights,
    ) -> Tensor:
        spec, plan = self._spec, prepared
        z, inputs, dt = torch.split(projected, list(spec.sections), dim=-1)
        mixed = self._convolve(inputs.float(), cache[0], plan, weights)
        groups = (spec.num_groups, spec.state_size)
        x, b, c = torch.split(mixed, [spec.inner_size, *[groups[0] * groups[1]] * 2], dim=-1)
        dt = torch.nn.functional.softplus(dt.float() + weights.dt_bias).clamp(*spec.dt_limits)
        x = x.reshape(-1, spec.num_heads, spec.head_dim)
        b, c = (
            part.reshape(-1, *groups).repeat_interleave(spec.num_heads // groups[0], dim=1)
            for part in (b, c)
        )
        y = _scan((x, b, c, dt), weights.a, cache[1], plan)
        y = (y + weights.d[:, None] * x).flatten(1)
        return self._gated(y, z.float(), weights.norm).to(torch_dtype(spec.dtype))

    def _convolve(
        self, inputs: Tensor, cache: Tensor, plan: Plan, weights: StateSpaceWeights
    ) -> Tensor:
        """Convolve [t, conv_size] and activate; keep the last inputs."""
        carried = torch.where(plan.known[:, None, None], cache[plan.reads].float(), 0.0)
        source = torch.cat((carried.flatten(0, 1), inputs))
        taps = weights.conv.float()
        out = sum(source[plan.taps[:, j]] * taps[:, j] for j in range(taps.shape[1]))
        assert isinstance(out, Tensor)
        if weights.conv_bias is not None:
            out = out + weights.conv_bias.float()
        cache[plan.writes] = source[plan.kept].to(cache.dtype)
        return self._activation(out)

    def _gated(self, y: Tensor, z: Tensor, norm: Tensor | None) -> Tensor:
        """Gate [t, inner_size] by act(z), and norm it before or after that."""
        spec, gate = self._spec, self._activation(z)
        if norm is None:
            return y * gate
        y = y if spec.norm == "before" else y * gate
        parts = (spec.norm_groups, spec.inner_size // spec.norm_groups)
        y = rms_norm(y.view(-1, *parts), norm.view(parts), spec.norm_eps, 0.0).flatten(1)
        return y * gate if spec.norm == "before" else y


def _segments(shape: StepShape, spec: StateSpaceSpec) -> list[tuple[int, int, int]]:
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


def _chunks(segments: Sequence[tuple[int, int, int]], writes: Tensor) -> Iterator[Chunks]:
    """Cut sequences of several tokens into chunks, and yield the first of each, the second, ..."""
    cuts: dict[int, list[tuple[int, int, int]]] = {}
    for number, (row, begin, end) in enumerate(segments):
        for a, b in pairwise([*range(begin, end, CHUNK), end]):
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


def _scan(
    operands: tuple[Tensor, Tensor, Tensor, Tensor], a: Tensor, cache: Tensor, plan: Plan
) -> Tensor:
    """Run the recurrence over a step's tokens, and keep its states.

    Args:
        operands: x [t, heads, head_dim], B and C [t, heads, state_size], dt [t, heads].
        a: [heads].
        cache: [blocks, heads, head_dim, state_size].

    Returns:
        [t, heads, head_dim].
    """
    x, b, c, dt = operands
    state = torch.where(plan.known[:, None, None, None], cache[plan.reads].float(), 0.0)
    if plan.steps is None:
        y, state = _step(state, operands, a)
        cache[plan.writes] = state.to(cache.dtype)
        return y
    y = torch.empty_like(x)
    rows, at, blocks = plan.steps
    y[at], state[rows] = _step(state[rows], (x[at], b[at], c[at], dt[at]), a)
    cache[blocks] = state[rows].to(cache.dtype)
    for chunk in plan.chunks:
        at, rows = chunk.tokens, chunk.rows
        parts = (x[at], b[at], c[at], torch.where(chunk.valid[..., None], dt[at], 0.0))
        out, state[rows] = _chunk(state[rows], parts, a)
        y[at[chunk.valid]] = out[chunk.valid]
        cache[chunk.blocks] = state[rows[chunk.kept]].to(cache.dtype)
    return y


def _step(
    state: Tensor, operands: tuple[Tensor, Tensor, Tensor, Tensor], a: Tensor
) -> tuple[Tensor, Tensor]:
    """Take one token of each sequence; return y and the new states."""
    x, b, c, dt = operands
    added = (dt[..., None] * x)[..., None] * b[:, :, None, :]
    state = state * torch.exp(dt * a)[..., None, None] + added
    return torch.einsum("rhpn,rhn->rhp", state, c), state


def _chunk(
    state: Tensor, operands: tuple[Tensor, Tensor, Tensor, Tensor], a: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a chunk of each sequence, [r, l, ...]; a token whose dt is 0 changes nothing.

    Exponents are sums of decays from one token to another. As differences of running totals they
    need float64: the totals grow where nothing is left to decay.
    """
    x, b, c, dt = operands
    total = (dt * a).double().cumsum(1)
    between = (total[:, :, None] - total[:, None, :]).permute(0, 3, 1, 2)
    causal = torch.ones(between.shape[-2:], dtype=torch.bool, device=x.device).tril()
    decay = torch.exp(between.masked_fill(~causal, -torch.inf)).float()
    scores = torch.einsum("rihn,rjhn->rhij", c, b) * decay * dt.transpose(1, 2)[:, :, None, :]
    y = torch.einsum("rhij,rjhp->rihp", scores, x)
    y = y + torch.einsum("rihn,rhpn->rihp", c, state) * torch.exp(total).float()[..., None]
    left = (torch.exp(total[:, -1:] - total).float() * dt)[..., None] * b
    state = state * torch.exp(total[:, -1]).float()[..., None, None]
    return y, state + torch.einsum("rjhn,rjhp->rhpn", left, x)
