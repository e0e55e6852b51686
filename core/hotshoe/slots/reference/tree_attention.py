"""Reference of slot `tree_attention`: one request at a time, float32 inside, any layout."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.step import AttentionMetadata
from hotshoe.slots.trees import TreeAttentionSpec, TreeNodes


class TreeAttention:
    """See `hotshoe.slots.TreeAttentionOp`."""

    def __init__(self, spec: TreeAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        nodes: TreeNodes,
        sinks: Tensor | None,
    ) -> Tensor:
        spec = self._spec.attention
        paged = kv_of(cache, spec, self._spec.layout)
        out = q.new_empty((*q.shape[:2], spec.value_dim))
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        counts = nodes.counts.tolist()
        for i in range(prepared.num_reqs):
            own, length = slice(starts[i], starts[i + 1]), lengths[i]
            blocks = prepared.block_table[i, : -(-length // spec.block_size)]
            k, v = paged.gather(blocks, length)
            hidden = unseen(nodes.ancestors[own], counts[i], length)
            out[own] = attend(spec, q[own], k, v, sinks, hidden)
        return out.flatten(1)


def unseen(ancestors: Tensor, count: int, length: int) -> Tensor:
    """Return [queries, length], the keys of nodes that no bit of a query names.

    Args:
        ancestors: [queries] int64, as in `TreeNodes`.
        count: Nodes of the request.
        length: Its tokens.
    """
    hidden = torch.zeros(len(ancestors), length, dtype=torch.bool, device=ancestors.device)
    bits = torch.arange(count, device=ancestors.device)
    hidden[:, length - count :] = (ancestors[:, None] >> bits) & 1 == 0
    return hidden
