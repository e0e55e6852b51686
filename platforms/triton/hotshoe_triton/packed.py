"""Candidate of slot `packed_attention`: one launch, behind one that rotates where channels are."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PackedAttentionSpec, RotaryAndCacheSpec, StepShape, Verdict
from hotshoe.slots.reference import accepts
from hotshoe_triton.attention import FLOAT32, LAYOUT, MIN_ROWS, Tiling
from hotshoe_triton.device import arch_of, judge, next_power_of_2
from hotshoe_triton.rotary import RotaryAndCache

MAX_HEAD_DIM = 256
#: By family, for 16-bit elements: heads of up to 64 channels, then wider ones.
TILINGS: dict[str, tuple[Tiling, Tiling]] = {
    "ampere": (Tiling(64, 64, 4, 3), Tiling(64, 32, 4, 2)),
    "hopper": (Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2)),
    "blackwell": (Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2)),
    "small": (Tiling(64, 32, 4, 2), Tiling(32, 32, 4, 2)),
    "cdna": (Tiling(64, 64, 4, 1), Tiling(64, 32, 4, 1)),
    "rdna": (Tiling(32, 16, 4, 1), Tiling(16, 16, 8, 1)),
}
#: Requests whose starts a program looks at together.
REQUESTS = 256
#: A step's starts, requests, the number of each token, and how many of a request are seen.
Plan: TypeAlias = tuple[Tensor, int, Tensor, Tensor | None]


def supports(spec: PackedAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    known, dim = accepts.supports(spec, facts), spec.head_dim
    if not known.accepted:
        return known
    wide = f"head_dim {dim} is above {MAX_HEAD_DIM}"
    refusals = {wide: dim > MAX_HEAD_DIM, f"scale {spec.scale} is not positive": not spec.scale > 0}
    return judge(facts, spec.dtype, refusals)


class PackedAttention:
    """See `hotshoe.slots.PackedAttentionOp`."""

    def __init__(self, spec: PackedAttentionSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.biased import biased_attention
        from hotshoe_triton.kernels.packed import packed_attention

        sees_all = spec.window is None and not spec.limited
        biased = spec.bias_span is not None and sees_all
        self._kernel, self._spec = biased_attention if biased else packed_attention, spec
        tiling = TILINGS[arch_of(facts).family][spec.head_dim > 64]
        if spec.dtype == "float32":
            tiling = FLOAT32
        self._rows = tiling.rows
        self._constants = {
            "NUM_HEADS": spec.num_heads,
            "GROUP": spec.num_heads // spec.num_kv_heads,
            "HEAD_DIM": spec.head_dim,
            "SCALE": spec.scale,
            "WINDOW": -1 if spec.window is None else spec.window,
            "SPAN": -1 if spec.bias_span is None else spec.bias_span,
            "LIMITED": spec.limited,
            "BLOCK_M": tiling.rows,
            "BLOCK_N": tiling.keys,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
            "BLOCK_R": REQUESTS,
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
        }
        sizes = spec.num_heads, spec.num_kv_heads, spec.head_dim
        types = spec.dtype, spec.dtype
        # In blocks of one token, keys and values lie in rows.
        writes = RotaryAndCacheSpec(*sizes, spec.rotary_dim, *types, 1, LAYOUT)
        self._rotate = RotaryAndCache(writes, facts) if spec.rotary_dim else None
        self._widths = [n * spec.head_dim for n in (sizes[0], sizes[1], sizes[1])]
        self._held = torch.empty(2, 0, 1)

    def prepare(self, shape: StepShape, num_keys: Tensor | None = None) -> Plan:
        """Return where requests begin, their number, and tokens to be written in order."""
        starts, tokens = shape.query_start_loc, 0
        if self._rotate is not None:
            tokens = sum(shape.host_lens[0]) if shape.host_lens else int(starts[-1])
        numbered = torch.arange(tokens, dtype=torch.int32, device=starts.device)
        return starts, shape.num_reqs, numbered, num_keys

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        prepared: Plan,
        bias: Tensor | None = None,
    ) -> Tensor:
        starts, num_reqs, numbered, num_keys = prepared
        q, k, v = qkv.split(self._widths, 1)
        if self._rotate is not None:
            held = self._room(qkv)
            self._rotate(qkv, positions, cos_sin, held, numbered, None)
            k, v = held[:, : len(qkv)].unbind()
        out = qkv.new_empty((len(qkv), self._widths[0]))
        if len(qkv):
            self._kernel[(self._spec.num_heads, len(qkv) // self._rows + num_reqs)](
                out,
                q,
                k,
                v,
                starts,
                bias,
                num_keys,
                num_reqs,
                q.stride(0),
                k.stride(0),
                v.stride(0),
                **self._constants,
            )
        return out

    def _room(self, qkv: Tensor) -> Tensor:
        """Return memory for the keys and values of a step: the last one's, where it suffices."""
        if self._held.size(1) < len(qkv):
            self._held = qkv.new_empty((2, len(qkv), self._widths[1]))
        return self._held
