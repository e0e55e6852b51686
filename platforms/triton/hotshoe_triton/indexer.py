"""Candidate of slot `indexer`: one launch scores the tokens that queries see, another chooses.

Scores of many queries of long sequences do not fit into memory at once. So queries go in parts of
equal size, which the number of tokens and the longest sequence give, without the host's knowing
any length.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, BlockIndexerSpec, IndexerSpec, Verdict, whole_step
from hotshoe_triton.attention import MIN_ROWS, request_block
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.kv import row_limit, row_refusals, row_views
from hotshoe_triton.latent import WRITE_HEADS

#: What one program holds: heads, and channels of each.
MAX_HEADS, MAX_HEAD_DIM = 128, 256
#: Scores that are held at once, at least those of one query.
MOST_SCORES = 1 << 25
#: Keys that one program scores, and scores that one looks at together.
KEYS, TOGETHER = 1024, 2048
#: Rows of scores begin at multiples of so many, so that one kernel serves any longest sequence.
ALIGNED = 16


def key_refusals(spec: IndexerSpec | BlockIndexerSpec, facts: DeviceFacts) -> dict[str, bool]:
    """Return which of an indexer's sizes and types its kernels cannot have."""
    turned = spec.rope_dim % 2 or spec.rope_dim > spec.head_dim
    return {
        **row_refusals(spec.row, facts),
        f"{spec.num_heads} heads are above {MAX_HEADS}": spec.num_heads > MAX_HEADS,
        f"head_dim {spec.head_dim} is above {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
        f"rope_dim {spec.rope_dim} is odd or above head_dim {spec.head_dim}": bool(turned),
    }


def supports(spec: IndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    return judge(facts, spec.dtype, key_refusals(spec, facts))


Spec = TypeVar("Spec", IndexerSpec, BlockIndexerSpec)


class IndexerKeys(Generic[Spec]):
    """See `hotshoe.slots.mixers.IndexerKeysOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        most_scores: To hold at once, instead of `MOST_SCORES`.
    """

    prepare = staticmethod(whole_step)

    def __init__(self, spec: Spec, facts: DeviceFacts, most_scores: int = MOST_SCORES) -> None:
        from hotshoe_triton.kernels.indexer import index_write

        self._spec, self._most, self._write_keys = spec, most_scores, index_write
        self._chain = chaining(facts)
        narrow = spec.dtype == "float32" or arch_of(facts).family in ("cdna", "rdna")
        sizes = {
            "HEADS": spec.num_heads,
            "D": spec.head_dim,
            "WIDTH": spec.row.width,
            "BLOCK_SIZE": spec.block_size,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
        } | self._chain
        self._write = sizes | {
            "LIMIT": row_limit(spec.row),
            "TURNED": spec.rope_dim,
            "INTERLEAVED": spec.interleaved,
            "BLOCK_P": next_power_of_2(max(1, spec.rope_dim // 2)),
            "BLOCK_H": WRITE_HEADS,
            "num_warps": 2,
        }
        self._score = sizes | {
            "SCALED": spec.row.quantized,
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


class Indexer(IndexerKeys[IndexerSpec]):
    """See `hotshoe.slots.IndexerOp`, and `IndexerKeys`."""

    def __init__(
        self, spec: IndexerSpec, facts: DeviceFacts, most_scores: int = MOST_SCORES
    ) -> None:
        from hotshoe_triton.kernels import indexer as kernels

        super().__init__(spec, facts, most_scores)
        self._kernels = kernels
        self._score |= {"TOP_K": spec.top_k, "TILES": KEYS // self._score["BLOCK_N"]}
        self._choice = {
            "TOP_K": spec.top_k,
            "BLOCK_S": TOGETHER,
            "num_warps": 8,
        } | self._chain

    def __call__(
        self, q: Tensor, weights: Tensor, cache: Tensor, prepared: AttentionMetadata
    ) -> Tensor:
        top_k, longest, step = self._spec.top_k, prepared.max_seq_len, prepared
        chosen = torch.empty((len(q), top_k), dtype=torch.int32, device=q.device)
        if not len(q):
            return chosen
        scored = longest > top_k
        size = max(1, min(len(q), self._most // longest)) if scored else len(q)
        width = -(-longest // ALIGNED) * ALIGNED if scored else ALIGNED
        scores = torch.empty((size, width), device=q.device)
        lengths = (step.query_start_loc, step.seq_lens)
        block_r = request_block(step.num_reqs)
        table, rows = step.block_table, row_views(cache, self._spec.row)
        strides = (q.stride(0), weights.stride(0), table.stride(0), rows[0].stride(0))
        for first in range(0, len(q), size):
            tokens = min(size, len(q) - first)
            if scored:
                self._kernels.index_scores[(tokens, -(-longest // KEYS))](
                    scores, q, weights, rows[0], rows[2], table, *lengths, first, step.num_reqs,
                    scores.stride(0), *strides, BLOCK_R=block_r, **self._score,
                )  # fmt: skip
            self._kernels.index_choose[(tokens,)](
                chosen, scores, *lengths, first, step.num_reqs, scores.stride(0),
                BLOCK_R=block_r, **self._choice,
            )  # fmt: skip
        return chosen
