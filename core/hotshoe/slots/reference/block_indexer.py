"""Reference of slot `block_indexer`: one request at a time, float32 inside."""

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.reference.indexer import IndexerKeys
from hotshoe.slots.step import AttentionMetadata


class BlockIndexer(IndexerKeys[BlockIndexerSpec]):
    """See `hotshoe.slots.BlockIndexerOp`."""

    def __call__(self, q: Tensor, cache: Tensor, prepared: AttentionMetadata) -> Tensor:
        spec = self._spec
        shape = (*q.shape[:2], spec.top_k)
        out = torch.full(shape, -1, dtype=torch.int32, device=q.device)
        for part, keys, at in self._parts(cache, prepared):
            found = choose(spec, block_scores(spec, q[part], keys, at), at)
            out[part, :, : found.shape[-1]] = found
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
