"""Reference of slot `indexer`: one request at a time, float32 inside."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.reference.rotary import rotate
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.slots.specs import IndexerSpec
from hotshoe.slots.step import AttentionMetadata, whole_step

#: Scores of single heads and keys that are held at once, at least those of one query.
MOST_SCORES = 1 << 24


Spec = TypeVar("Spec", IndexerSpec, BlockIndexerSpec)


class IndexerKeys(Generic[Spec]):
    """See `hotshoe.slots.mixers.IndexerKeysOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: Spec, facts: DeviceFacts) -> None:
        self._spec: Spec = spec

    def write(
        self,
        q: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        spec, table, slots = self._spec, cos_sin[positions.long()], slot_mapping.long()
        key = rotate(key.unsqueeze(1), table, spec.interleaved).squeeze(1)
        cache[slots // spec.block_size, slots % spec.block_size] = packed(spec.row, key)
        return rotate(q, table, spec.interleaved)

    def _parts(
        self, cache: Tensor, prepared: AttentionMetadata
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield some queries of a request, its keys [seq_len, head_dim] float32, and the positions
        [n] int64 of these queries."""
        spec = self._spec
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        for i in range(prepared.num_reqs):
            begin, end, length = starts[i], starts[i + 1], lengths[i]
            blocks = prepared.block_table[i, : -(-length // spec.block_size)].long()
            keys = unpacked(spec.row, cache[blocks].flatten(0, 1)[:length])
            step = max(1, MOST_SCORES // (length * spec.num_heads))
            for first in range(begin, end, step):
                last = min(first + step, end)
                at = torch.arange(first, last, device=cache.device) + (length - end)
                yield slice(first, last), keys, at


class Indexer(IndexerKeys[IndexerSpec]):
    """See `hotshoe.slots.IndexerOp`."""

    def __call__(
        self, q: Tensor, weights: Tensor, cache: Tensor, prepared: AttentionMetadata
    ) -> Tensor:
        top_k = self._spec.top_k
        out = torch.full((len(q), top_k), -1, dtype=torch.int32, device=q.device)
        for part, keys, at in self._parts(cache, prepared):
            found = choose(scores(q[part], weights[part], keys), at, top_k)
            out[part, : found.shape[1]] = found
        return out


def scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Score keys.

    Args:
        q: [n, num_heads, head_dim], rotated.
        weights: [n, num_heads] float32.
        keys: [seq_len, head_dim] float32.

    Returns:
        [n, seq_len] float32.
    """
    each = torch.matmul(q.float(), keys.T).relu_()
    return torch.matmul(weights.float().unsqueeze(1), each).squeeze(1)


def choose(scored: Tensor, at: Tensor, top_k: int) -> Tensor:
    """Return the positions of the largest scores, [n, min(top_k, seq_len)] int32, -1 for none.

    Args:
        scored: [n, seq_len] float32; overwritten.
        at: [n] int64, the position of each query, which sees none behind it.
    """
    behind = torch.arange(scored.shape[1], device=scored.device) > at[:, None]
    found = scored.masked_fill_(behind, -torch.inf).topk(min(top_k, scored.shape[1])).indices
    return found.masked_fill(found > at[:, None], -1).int()
