"""References of slots `compress` and `compressed_attention`, float32 inside. Nothing here waits for
the device: how many groups a step completes is bounded by what the host knows.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.compressed import CompressedAttentionSpec, CompressSpec
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.rotary import rotate
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.slots.step import AttentionMetadata, whole_step

#: Numbers of gathered rows that are held at once; at least those of one query.
MOST_NUMBERS = 1 << 24


class Compress:
    """See `hotshoe.slots.CompressOp`."""

    def __init__(self, spec: CompressSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def write(self, rows: Tensor, tokens: Tensor, slot_mapping: Tensor) -> None:
        slots, size = slot_mapping.long(), self._spec.block_size
        tokens[slots // size, slots % size] = rows

    def turn(self, q: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        return rotate_last(q, cos_sin[positions.long()], self._spec.rope_dim)

    def __call__(
        self,
        tokens: Tensor,
        entries: Tensor,
        steps: tuple[AttentionMetadata, AttentionMetadata],
        bias: Tensor,
        norm: Tensor | None,
        cos_sin: Tensor,
    ) -> None:
        spec, (step, own) = self._spec, steps
        requests, last, some = completed(step, spec.group)
        values, gates = self._gathered(tokens, step.block_table[requests], last, bias)
        made = (torch.softmax(gates, 1) * values).sum(1)
        if norm is not None and spec.norm_eps is not None:
            made = made * torch.rsqrt(made.square().mean(-1, keepdim=True) + spec.norm_eps)
            made = made * norm.float()
        made = made.to(torch_dtype(spec.dtype))
        table = cos_sin[(last + 1 - spec.group).clamp(min=0)]
        turned = rotate_last(made.unsqueeze(1), table, spec.rope_dim).squeeze(1)
        places = place_of(own.block_table, requests, last, spec.group, spec.block_size)
        # Where no group was completed, what lies there is written there again.
        entries[places] = torch.where(some, packed(spec.row, turned), entries[places])

    def _gathered(
        self, tokens: Tensor, table: Tensor, last: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return values and gates [n, reach, head_dim] float32 of the tokens of entries."""
        spec, size = self._spec, self._spec.block_size
        back = torch.arange(1 - spec.reach, 1, device=last.device)
        at = last[:, None] + back
        there = at >= 0
        at = at.clamp(min=0)
        blocks = table.gather(1, at // size).long()
        rows = unpacked(spec.token_row, tokens[blocks, at % size])
        values, gates = rows.masked_fill(~there[..., None], 0).chunk(2, -1)
        gates = gates + bias[at % spec.group]
        if spec.overlap:  # tokens of the group before have the first set, others the second
            values, gates = (_sets(part, spec) for part in (values, gates))
        return values, gates.masked_fill(~there[..., None], -torch.inf)


def _sets(part: Tensor, spec: CompressSpec) -> Tensor:
    """Take the first set of the group before, and the second of the entry's own."""
    before, own = torch.split(part, spec.group, 1)
    return torch.cat((before[..., : spec.head_dim], own[..., spec.head_dim :]), 1)


class CompressedAttention:
    """See `hotshoe.slots.CompressedAttentionOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: CompressedAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def write(
        self,
        q: Tensor,
        row: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        spec, table, slots = self._spec, cos_sin[positions.long()], slot_mapping.long()
        row = rotate_last(row.unsqueeze(1), table, spec.rope_dim).squeeze(1)
        cache[slots // spec.block_size, slots % spec.block_size] = packed(spec.row, row)
        return rotate_last(q, table, spec.rope_dim)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        entries: tuple[Tensor, AttentionMetadata, Tensor | None] | None,
        sinks: Tensor,
        cos_sin: Tensor,
    ) -> Tensor:
        spec, size = self._spec, self._spec.block_size
        requests, positions = places_of(prepared, len(q))
        seen, held = self._window(positions), None
        if entries is not None:
            held = self._entries(entries, positions)
        out = torch.empty_like(q)
        most = spec.head_dim * (seen.shape[1] + (0 if held is None else held.shape[1]))
        for begin in range(0, len(q), step := max(1, MOST_NUMBERS // most)):
            part = slice(begin, begin + step)
            own, at = requests[part], seen[part]
            blocks = prepared.block_table[own].gather(1, at.clamp(min=0) // size).long()
            rows, meant = cache[blocks, at.clamp(min=0) % size], at >= 0
            if held is not None and entries is not None:
                assert spec.group is not None
                which, table = held[part], entries[1].block_table
                last = torch.where(which >= 0, (which + 1) * spec.group - 1, 0)
                found = place_of(table, own[:, None], last, spec.group, size)
                rows = torch.cat((rows, entries[0][found]), 1)
                meant = torch.cat((meant, which >= 0), 1)
            out[part] = attend(spec, q[part], unpacked(spec.row, rows), meant, sinks)
        return self.turned_back(out, prepared, cos_sin)

    def turned_back(self, out: Tensor, step: AttentionMetadata, cos_sin: Tensor) -> Tensor:
        """Take the rotations of positions back from [num_tokens, num_heads, head_dim]; flat."""
        _, positions = places_of(step, len(out))
        rope_dim = self._spec.rope_dim
        back = cos_sin[positions] * _signs(rope_dim, out.device)
        return rotate_last(out, back, rope_dim).flatten(1)

    def _window(self, positions: Tensor) -> Tensor:
        """Return the positions that queries see [num_tokens, window], below 0 for none."""
        back = torch.arange(self._spec.window, device=positions.device)
        return positions[:, None] - back

    def _entries(
        self, entries: tuple[Tensor, AttentionMetadata, Tensor | None], positions: Tensor
    ) -> Tensor:
        """Return the entries that queries see [num_tokens, n], -1 for none."""
        _, step, chosen = entries
        assert self._spec.group is not None
        most = step.max_seq_len // self._spec.group
        if chosen is not None:
            return chosen[:, :most].long() if most else chosen[:, :0].long()
        every = torch.arange(most, device=positions.device)
        whole = (positions[:, None] + 1) // self._spec.group
        return torch.where(every < whole, every, -1)


def completed(step: AttentionMetadata, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the groups whose last token is in a step.

    Returns:
        requests, last tokens [n] int64, the last ones of which repeat the last group; and whether
        there is any [] bool. Where there is none, all are the first token of the first request.
    """
    lengths, starts = step.seq_lens.long(), step.query_start_loc.long()
    before = (lengths - (starts[1:] - starts[:-1])) // group
    ends = (lengths // group - before).cumsum(0)
    most = len(step.slot_mapping) // group + step.num_reqs
    some = ends[-1] > 0
    numbers = torch.arange(most, device=lengths.device)
    numbers = torch.minimum(numbers, (ends[-1] - 1).clamp(min=0))
    requests = torch.searchsorted(ends, numbers, right=True).clamp(max=step.num_reqs - 1) * some
    # Groups of the request are counted back from its last one.
    groups = lengths[requests] // group - (ends[requests] - numbers)
    return requests, (groups * group + group - 1) * some, some


def place_of(
    table: Tensor, requests: Tensor, last: Tensor, group: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return blocks, and places in them, of the entries of groups with such last tokens."""
    return table[requests, last // size].long(), last % size // group


def places_of(step: AttentionMetadata, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return request and position of each token of a step, [num_tokens] int64 each."""
    ends = step.query_start_loc[1:].long()
    tokens = torch.arange(num_tokens, device=ends.device)
    requests = torch.searchsorted(ends, tokens, right=True).clamp(max=step.num_reqs - 1)
    positions = step.seq_lens.long()[requests] - ends[requests] + tokens
    return requests, positions.clamp(min=0)


def rotate_last(x: Tensor, table: Tensor, rope_dim: int) -> Tensor:
    """Rotate the last channels of every head by pairs of neighbors.

    Args:
        x: [num_tokens, heads, head_dim].
        table: [num_tokens, rope_dim] float32, cosines then sines.
        rope_dim: How many.
    """
    plain, part = x[..., : x.shape[-1] - rope_dim], x[..., x.shape[-1] - rope_dim :]
    return torch.cat((plain, rotate(part, table, True)), dim=-1)


def _signs(rope_dim: int, device: torch.device) -> Tensor:
    """Return what turns a row of a rotation's table into that of the reverse rotation."""
    half = torch.ones(rope_dim // 2, device=device)
    return torch.cat((half, -half))


def attend(
    spec: CompressedAttentionSpec, q: Tensor, rows: Tensor, meant: Tensor, sinks: Tensor
) -> Tensor:
    """Attend with each query to rows of its own.

    Args:
        q: [n, num_heads, head_dim], rotated.
        rows: [n, k, head_dim] float32.
        meant: [n, k] bool; other rows do not exist.
        sinks: [num_heads] float32.

    Returns:
        [n, num_heads, head_dim] in q's dtype.
    """
    rows = rows.masked_fill(~meant.unsqueeze(-1), 0)  # not even NaN of them may count
    scores = torch.einsum("qhd,qkd->qhk", q.float(), rows) * spec.scale
    scores = scores.masked_fill(~meant.unsqueeze(1), -torch.inf)
    beside = sinks.float().expand(len(q), -1).unsqueeze(-1)
    weights = torch.softmax(torch.cat((scores, beside), -1), -1)[..., :-1]
    return torch.einsum("qhk,qkd->qhd", weights, rows).to(q.dtype)
