"""Candidate of slot `block_indexer`: one launch scores the blocks that queries see, and PyTorch
chooses the largest scores. The host needs no length but the longest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, BlockIndexerSpec, Verdict
from hotshoe_triton.attention import request_block
from hotshoe_triton.device import judge
from hotshoe_triton.indexer import KEYS, MOST_SCORES, IndexerKeys, key_refusals
from hotshoe_triton.kv import row_views


def supports(spec: BlockIndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types: only what has run on a device."""
    refusals = {
        f"only bfloat16 has run on a device, not {spec.dtype}": spec.dtype != "bfloat16",
        f"keys in {spec.kv_dtype} have not run on a device": spec.row.quantized,
    }
    return judge(facts, spec.dtype, refusals | key_refusals(spec, facts))


class BlockIndexer(IndexerKeys[BlockIndexerSpec]):
    """See `hotshoe.slots.BlockIndexerOp`, and `IndexerKeys`."""

    def __init__(
        self, spec: BlockIndexerSpec, facts: DeviceFacts, most_scores: int = MOST_SCORES
    ) -> None:
        from hotshoe_triton.kernels.block_choice import block_scores

        super().__init__(spec, facts, most_scores)
        self._score_blocks, self._tiles = block_scores, max(1, KEYS // spec.group)
        self._score |= {"GROUP": spec.group, "LOCAL": spec.local, "TILES": self._tiles}

    def __call__(self, q: Tensor, cache: Tensor, prepared: AttentionMetadata) -> Tensor:
        spec, step = self._spec, prepared
        blocks = max(1, -(-step.max_seq_len // spec.group))
        size = max(1, self._most // (spec.num_heads * blocks))
        table, rows = step.block_table, row_views(cache, spec.row)
        rest = (q.stride(0), table.stride(0), rows[0].stride(0))
        chosen = [q.new_empty((0, spec.num_heads, spec.top_k), dtype=torch.int32)]
        for first in range(0, len(q), size):
            shape = (min(size, len(q) - first), spec.num_heads, blocks)
            scores = torch.empty(shape, device=q.device)
            self._score_blocks[(shape[0], -(-blocks // self._tiles))](
                scores, q, rows[0], rows[2], table, step.query_start_loc, step.seq_lens, first,
                step.num_reqs, blocks, *rest, BLOCK_R=request_block(step.num_reqs), **self._score,
            )  # fmt: skip
            chosen.append(self._largest(scores))
        return torch.cat(chosen) if len(chosen) > 2 else chosen[-1]

    def _largest(self, scores: Tensor) -> Tensor:
        """Return the places of the largest scores, -1 for those that are none."""
        best, places = scores.topk(min(self._spec.top_k, scores.shape[-1]))
        places = places.int().masked_fill_(best == -torch.inf, -1)
        return pad(places, (0, self._spec.top_k - places.shape[-1]), value=-1)
