"""Candidate `streaming` of slot `mla_attention`: many heads, on sm_90.

Steps that only decode go through a kernel whose warps divide the work; all others, and tensors that
the copy engine cannot read, through the portable kernels, whose cache it reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, MlaAttentionSpec, Verdict, accept_unless
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import latent
from hotshoe_triton.attention import request_block
from hotshoe_triton.device import SCORE, chaining

#: What the kernel is written for: heads of a program, latent and rotated channels, rows of a tile;
#: rows and channels that the copy engine brings at once.
HEADS, LATENT, TURNED, ROWS = 64, 512, 64, 64
BOX, PANEL = 32, 64
DTYPES = ("bfloat16", "float16")
#: Tiles below which sharing a request costs more than it gains.
MIN_TILES = 2
#: Heads whose pieces one program joins, and pieces at once.
JOIN = {"GROUP": 4, "BLOCK_G": 4, "BLOCK_P": 4}


def supports(spec: MlaAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what the kernel is written for; the rest as the portable ones do."""
    portable = latent.supports(spec, facts)
    if not portable.accepted:
        return portable
    missing = missing_gluon(facts)
    sizes = (spec.latent_dim, spec.rope_dim)
    refusals = {
        missing: bool(missing),
        f"kv_dtype {spec.kv_dtype}: its tiles are copied as they are multiplied": (
            spec.row.quantized
        ),
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"latent_dim and rope_dim are {sizes}, not {(LATENT, TURNED)}": sizes != (LATENT, TURNED),
        f"{spec.num_heads} heads are no multiple of {HEADS}": bool(spec.num_heads % HEADS),
        f"block_size {spec.block_size} is below {BOX}": spec.block_size < BOX,
    }
    note = "warps that divide the work for steps that only decode"
    return accept_unless(refusals, SCORE + 1, note)


class MlaAttention(latent.MlaAttention):
    """See `hotshoe.slots.MlaAttentionOp`."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        from hotshoe_cuda.kernels.latent import latent_decode
        from hotshoe_triton.kernels.latent import join_stretches

        super().__init__(spec, facts)
        self._stream, self._join = latent_decode, join_stretches
        self._shares = max(1, facts.compute_units // (spec.num_heads // HEADS))
        self._sizes = {"NUM_HEADS": spec.num_heads, "MIN_TILES": MIN_TILES}
        self._chain = chaining(facts)

    def _attend(self, q: Tensor, wide: Tensor, cache: Tensor, step: AttentionMetadata) -> Tensor:
        single = step.max_query_len == 1 and len(q) == step.num_reqs
        if not (single and q.is_contiguous() and cache.is_contiguous()):
            return super()._attend(q, wide, cache, step)
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(128, 16, 2)

        def tiles(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
            flat = tensor.view(-1, tensor.size(-1))
            return TensorDescriptor.from_tensor(flat, [rows, columns], layout)

        spec, reqs, mixed = self._spec, step.num_reqs, torch.empty_like(wide)
        pieces = self._shares * 2 * spec.num_heads
        scratch = torch.empty(pieces * (LATENT + 2), dtype=torch.float32, device=q.device)
        pieces_of = scratch, scratch[pieces * LATENT :]
        block_r = request_block(reqs)
        self._stream[(spec.num_heads // HEADS, self._shares)](
            mixed,
            tiles(wide, HEADS, LATENT // 2),
            tiles(q, HEADS, TURNED),
            tiles(cache, BOX, PANEL),
            step.block_table,
            step.seq_lens,
            *pieces_of,
            reqs,
            step.block_table.stride(0),
            NOPE=spec.nope_dim,
            BLOCK_SIZE=spec.block_size,
            SCALE=spec.scale,
            BLOCK_R=block_r,
            num_warps=4,
            launch_pdl=True,
            **self._sizes,
        )
        self._join[(reqs, spec.num_heads // JOIN["GROUP"])](
            mixed,
            *pieces_of,
            step.seq_lens,
            reqs,
            self._shares,
            LATENT=LATENT,
            ROWS=ROWS,
            BLOCK_L=LATENT,
            BLOCK_R=block_r,
            num_warps=4,
            **JOIN,
            **self._sizes,
            **self._chain,
        )
        return mixed
