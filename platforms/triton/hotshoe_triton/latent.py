"""Candidate of slot `mla_attention`: the absorbed form, for decoding and for prompts.

U takes q to the size of a cached row, and V takes the average of rows to values, each as one
product over all heads. Between them one launch serves requests with one query, another those with
more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    LatentAdapters,
    MlaAttentionSpec,
    Verdict,
    renewed,
    whole_step,
)
from hotshoe_triton.attention import (
    FLOAT32,
    MIN_ROWS,
    REQUEST_BLOCKS,
    Tiling,
    decoding,
    prefilling,
    request_block,
    zeroed,
)
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.kv import row_constants, row_limit, row_refusals, row_views

MAX_LATENT_DIM = 512
#: Heads that one program of `latent_write` rotates.
WRITE_HEADS = 16

#: By family, for 16-bit elements: decode, prefill, and decode where a model has no more heads than
#: its rows. No program takes more heads than decode's rows.
TILINGS: dict[str, tuple[Tiling, ...]] = {
    "ampere": (Tiling(16, 64, 8, 2, 1, 128), Tiling(64, 32, 8, 2)),
    "hopper": (
        Tiling(64, 64, 8, 2, 1, 128),
        Tiling(64, 64, 8, 2),
        Tiling(16, 64, 8, 3, 1, 128),
    ),
    "blackwell": (Tiling(16, 64, 8, 2, 1, 128), Tiling(16, 64, 8, 2)),
    "small": (Tiling(16, 32, 4, 1, 1, 128), Tiling(16, 32, 4, 1)),
    "cdna": (Tiling(16, 32, 4, 1, 1, 128), Tiling(16, 32, 4, 1)),
    "rdna": (Tiling(16, 16, 8, 1, 1, 128), Tiling(16, 16, 8, 1)),
}


def supports(spec: MlaAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    size = spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            **row_refusals(spec.row, facts),
            f"latent_dim {spec.latent_dim} is above {MAX_LATENT_DIM}": (
                spec.latent_dim > MAX_LATENT_DIM
            ),
            f"rope_dim {spec.rope_dim} is odd": bool(spec.rope_dim % 2),
            f"block_size {size} is not a power of two": bool(size & (size - 1)),
            f"scale {spec.scale} is not positive": not spec.scale > 0,
        },
    )


def heads_of_program(num_heads: int, most: int) -> int:
    """Return into how large equal groups heads are divided, as few as rows allow."""
    groups = next(
        n for n in range(1, num_heads + 1) if num_heads % n == 0 and num_heads <= n * most
    )
    return num_heads // groups


class MlaAttention:
    """See `hotshoe.slots.MlaAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        decode, prefill: Tilings to use instead of the shipped ones.
    """

    prepare = staticmethod(whole_step)

    def __init__(
        self,
        spec: MlaAttentionSpec,
        facts: DeviceFacts,
        decode: Tiling | None = None,
        prefill: Tiling | None = None,
    ) -> None:
        from hotshoe_triton.kernels import latent as kernels

        shipped = TILINGS[arch_of(facts).family]
        if spec.dtype == "float32":
            shipped = (FLOAT32, FLOAT32)
        few = len(shipped) > 2 and spec.num_heads <= shipped[2].rows
        decode, prefill = decode or shipped[2 * few], prefill or shipped[1]
        self._spec, self._device, self._up = spec, facts.device, torch.empty(0)
        self._decode_kernel, self._prefill_kernel = kernels.latent_decode, kernels.latent_prefill
        self._write_kernel = kernels.latent_write
        group = heads_of_program(spec.num_heads, decode.rows)
        self._group, self._groups = group, spec.num_heads // group
        self._programs = max(1, -(-facts.compute_units * decode.programs_per_unit // self._groups))
        sizes = {
            "NUM_HEADS": spec.num_heads,
            "LATENT": spec.latent_dim,
            "NOPE": spec.nope_dim,
            "TURNED": spec.rope_dim,
            "BLOCK_SIZE": spec.block_size,
            "BLOCK_L": max(MIN_ROWS, next_power_of_2(spec.latent_dim)),
        } | chaining(facts)
        rows = row_constants(spec.row)
        shared = (
            sizes
            | rows
            | {
                "GROUP": group,
                "SCALE": spec.scale,
                "BLOCK_T": max(MIN_ROWS, next_power_of_2(spec.rope_dim)),
            }
        )
        self._decode = shared | decoding(decode, group, sizes["BLOCK_L"])
        self._prefill = shared | prefilling(prefill, group)
        self._block_q = self._prefill["BLOCK_M"] // group
        del rows["SCALED"]
        self._write = (
            sizes
            | rows
            | {
                "LIMIT": row_limit(spec.row),
                "INTERLEAVED": spec.interleaved,
                "BLOCK_H": WRITE_HEADS,
                "BLOCK_P": next_power_of_2(max(1, spec.rope_dim // 2)),
                "num_warps": 2,
            }
        )
        self._counters: list[Tensor] = []

    def load(self, up: Tensor) -> None:
        fresh = up.to(self._device, getattr(torch, self._spec.dtype), copy=True)
        self._up = renewed(self._up, fresh)
        self._to_keys = self._up[:, : self._spec.nope_dim]
        self._to_values = self._up[:, self._spec.nope_dim :].transpose(1, 2)

    def state(self) -> dict[str, Tensor]:
        return {"weight": self._up.flatten(0, 1)} if self._up.numel() else {}

    def nbytes(self) -> int:
        return self._up.nbytes

    def write(
        self,
        q: Tensor,
        latent: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        tokens, rows = q.size(0), row_views(cache, self._spec.row)
        if tokens:
            self._write_kernel[(tokens, -(-self._spec.num_heads // WRITE_HEADS) + 1)](
                q,
                latent,
                key,
                positions,
                cos_sin,
                *rows,
                slot_mapping,
                q.stride(0),
                latent.stride(0),
                key.stride(0),
                rows[0].stride(0),
                rows[1].stride(0),
                **self._write,
            )
        return q

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        adapters: LatentAdapters | None = None,
    ) -> Tensor:
        if prepared.num_reqs == 0:
            return q.new_empty((len(q), self._spec.num_heads * self._spec.v_dim))
        wide = self.widened(q, adapters)
        return self.values(self._attend(q, wide, cache, prepared), adapters)

    def widened(self, q: Tensor, adapters: LatentAdapters | None = None) -> Tensor:
        """Take q to the size of a row's latents [tokens, num_heads, latent_dim]."""
        wide = q.new_empty((len(q), self._spec.num_heads, self._spec.latent_dim))
        plain = q[..., : self._spec.nope_dim].transpose(0, 1)
        torch.bmm(plain, self._to_keys, out=wide.transpose(0, 1))
        if adapters is not None:
            adapters.widen(wide, q.contiguous())
        return wide

    def values(self, mixed: Tensor, adapters: LatentAdapters | None = None) -> Tensor:
        """Take averages of latents to values [tokens, num_heads * v_dim]."""
        out = mixed.new_empty((len(mixed), self._spec.num_heads, self._spec.v_dim))
        torch.bmm(mixed.transpose(0, 1), self._to_values, out=out.transpose(0, 1))
        if adapters is not None:
            adapters.values(out, mixed.contiguous())
        return out.flatten(1)

    def _attend(self, q: Tensor, wide: Tensor, cache: Tensor, step: AttentionMetadata) -> Tensor:
        """Return the average of latents of every token and head [tokens, num_heads, latent_dim]."""
        mixed, rows = torch.empty_like(wide), row_views(cache, self._spec.row)
        tokens, reqs, table = q.size(0), step.num_reqs, step.block_table
        tensors = (mixed, wide, q, *rows, table, step.query_start_loc, step.seq_lens)
        strides = (q.stride(0), table.stride(0), rows[0].stride(0), rows[1].stride(0))
        single = step.max_query_len == 1
        if single or reqs > 1:
            pieces = self._programs * 2 * self._spec.num_heads
            scratch = torch.empty(
                pieces * (self._spec.latent_dim + 2), dtype=torch.float32, device=q.device
            )
            self._decode_kernel[(self._groups, self._programs)](
                *tensors,
                scratch,
                scratch[pieces * self._spec.latent_dim :],
                zeroed(self._counters, max(reqs, REQUEST_BLOCKS[1]) * self._groups, q.device),
                reqs,
                *strides,
                UNIFORM=single and tokens == reqs,
                BLOCK_R=request_block(reqs),
                **self._decode,
            )
        if not single:
            grid = (self._groups, tokens // self._block_q + reqs)
            self._prefill_kernel[grid](*tensors, reqs, *strides, **self._prefill)
        return mixed
