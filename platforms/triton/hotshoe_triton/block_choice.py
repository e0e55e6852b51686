"""Candidate of slot `block_indexer`: one launch scores the blocks that queries see, and PyTorch
chooses the largest scores. The host needs no length but the longest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, BlockIndexerSpec, Verdict, whole_step
from hotshoe_triton.attention import MIN_ROWS, request_block
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.indexer import MAX_HEAD_DIM, MAX_HEADS, MOST_SCORES
from hotshoe_triton.kv import row_limit, row_refusals, row_views
from hotshoe_triton.latent import WRITE_HEADS

#: Keys that one program scores, those of one block at least.
KEYS = 1024


def supports(spec: BlockIndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types: only what has run on a device."""
    turned = spec.rope_dim % 2 or spec.rope_dim > spec.head_dim
    return judge(
        facts,
        spec.dtype,
        {
            f"only bfloat16 has run on a device, not {spec.dtype}": spec.dtype != "bfloat16",
            f"keys in {spec.kv_dtype} have not run on a device": spec.row.quantized,
            **row_refusals(spec.row, facts),
            f"{spec.num_heads} heads are above {MAX_HEADS}": spec.num_heads > MAX_HEADS,
            f"head_dim {spec.head_dim} is above {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
            f"rope_dim {spec.rope_dim} is odd or above head_dim {spec.head_dim}": bool(turned),
        },
    )


class BlockIndexer:
    """See `hotshoe.slots.BlockIndexerOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        most_scores: To hold at once, instead of `MOST_SCORES`.
    """

    prepare = staticmethod(whole_step)

    def __init__(
        self, spec: BlockIndexerSpec, facts: DeviceFacts, most_scores: int = MOST_SCORES
    ) -> None:
        from hotshoe_triton.kernels.block_choice import block_scores
        from hotshoe_triton.kernels.indexer import index_write

        self._spec, self._most = spec, most_scores
        self._score_blocks, self._write_keys = block_scores, index_write
        narrow = spec.dtype == "float32" or arch_of(facts).family in ("cdna", "rdna")
        sizes = {
            "HEADS": spec.num_heads,
            "D": spec.head_dim,
            "WIDTH": spec.row.width,
            "BLOCK_SIZE": spec.block_size,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
        } | chaining(facts)
        self._write = sizes | {
            "LIMIT": row_limit(spec.row),
            "TURNED": spec.rope_dim,
            "INTERLEAVED": spec.interleaved,
            "BLOCK_P": next_power_of_2(max(1, spec.rope_dim // 2)),
            "BLOCK_H": WRITE_HEADS,
            "num_warps": 2,
        }
        self._tiles = max(1, KEYS // spec.group)
        self._score = sizes | {
            "SCALED": spec.row.quantized,
            "GROUP": spec.group,
            "LOCAL": spec.local,
            "TILES": self._tiles,
            "BLOCK_H": max(MIN_ROWS, next_power_of_2(spec.num_heads)),
            "BLOCK_N": 16 if narrow else 64,
            "num_warps": 8 if spec.dtype == "float32" else 4,
        }

    def write(
        self,
        q: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        if len(q):
            rows = row_views(cache, self._spec.row)
            self._write_keys[(len(q), -(-self._spec.num_heads // WRITE_HEADS) + 1)](
                q, key, positions, cos_sin, rows[0], rows[2], slot_mapping,
                q.stride(0), key.stride(0), rows[0].stride(0), **self._write,
            )  # fmt: skip
        return q

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
