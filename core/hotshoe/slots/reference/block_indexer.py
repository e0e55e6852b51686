"""Reference of slot `block_indexer`: one request at a time, float32 inside."""

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.platform import DeviceFacts
from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.reference.rotary import rotate
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.slots.step import AttentionMetadata, whole_step

#: Scores of single tokens that are held at once, at least those of one query.
MOST_SCORES = 1 << 24


class BlockIndexer:
    """See `hotshoe.slots.BlockIndexerOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: BlockIndexerSpec, facts: DeviceFacts) -> None:
        self._spec = spec

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

    def __call__(self, q: Tensor, cache: Tensor, prepared: AttentionMetadata) -> Tensor:
        spec = self._spec
        shape = (*q.shape[:2], spec.top_k)
        out = torch.full(shape, -1, dtype=torch.int32, device=q.device)
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        for i in range(prepared.num_reqs):
            begin, end, length = starts[i], starts[i + 1], lengths[i]
            blocks = prepared.block_table[i, : -(-length // spec.block_size)].long()
            keys = unpacked(spec.row, cache[blocks].flatten(0, 1)[:length])
            step = max(1, MOST_SCORES // (length * spec.num_heads))
            for first in range(begin, end, step):
                last = min(first + step, end)
                at = torch.arange(first, last, device=q.device) + (length - end)
                found = choose(spec, block_scores(spec, q[first:last], keys, at), at)
                out[first:last, :, : found.shape[-1]] = found
        return out


def block_scores(spec: BlockIndexerSpec, q: Tensor, keys: Tensor, at: Tensor) -> Tensor:
    """Score blocks.

    Args:
        spec: The specification.
        q: [n, num_heads, head_dim], rotated.
        keys: [seq_len, head_dim] float32.
        at: [n] int64, the position of each query, which sees no token behind it.

    Returns:
        [n, num_heads, blocks] float32, -inf where a query sees nothing of a block.
    """
    each = torch.matmul(q.float(), keys.T)
    behind = torch.arange(len(keys), device=keys.device) > at[:, None]
    each = each.masked_fill_(behind[:, None], -torch.inf)
    each = functional.pad(each, (0, -len(keys) % spec.group), value=-torch.inf)
    return each.view(*each.shape[:2], -1, spec.group).amax(-1)


def choose(spec: BlockIndexerSpec, scored: Tensor, at: Tensor) -> Tensor:
    """Return the blocks to read, [n, num_heads, min(top_k, blocks)] int32, -1 for none.

    Args:
        spec: The specification.
        scored: [n, num_heads, blocks] float32; overwritten.
        at: [n] int64, positions of the queries.
    """
    own = (at // spec.group)[:, None, None]
    blocks = torch.arange(scored.shape[-1], device=scored.device)
    scored.masked_fill_((blocks <= own) & (blocks > own - spec.local), torch.inf)
    scored.masked_fill_(blocks > own, -torch.inf)  # where NaN would come first
    found = scored.topk(min(spec.top_k, scored.shape[-1])).indices
    return found.masked_fill(found > own, -1).int()
