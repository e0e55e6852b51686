"""Requests with one query in a step, on sm_90: every warp has keys of its own, and the memory never
waits for the end of a request.

Operations of prompts build on this one. Heads and caches that the kernel is not for go through the
portable kernel, which reads the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import attention, kv
from hotshoe_triton.attention import FEW_REQS, REQUEST_BLOCKS, request_block, zeroed
from hotshoe_triton.device import KIB, next_power_of_2

DTYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 128)
#: Query heads that share a KV head, which are columns of one product, and least KV heads: requests
#: of different lengths have too many pieces where all programs read one head.
MAX_GROUP, KV_HEADS = 8, 2
WARPS, PROGRAMS_PER_UNIT = 2, 4
#: Bytes of keys in a warp's tile: fewer come sooner, and are asked for more often.
TILE_BYTES = 4 * KIB
#: Tiles of a program, one of which is in use.
MAX_STAGES = 6
#: Shared memory of a compute unit, and what each program takes of it beside its own.
UNIT_BYTES, RESERVED_BYTES = 228 * KIB, KIB
#: Requests up to which a program compares the pages of its first tiles with all that a step writes.
EARLY_REQS = 256
#: Keys below which sharing them among programs costs more than it gains.
SHARE = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of a program's work.

    Attributes:
        warps: Warps of a program.
        keys: Keys of a warp in a tile.
        stages: Tiles of a program, one of which is in use.
        programs_per_unit: Programs per compute unit, over all KV heads.
    """

    warps: int
    keys: int
    stages: int
    programs_per_unit: int


#: Where so few heads are narrow. What is left of shared memory lets the next product begin.
FEW_HEADS = Tiling(4, 32, 2, 2)
#: Channels of heads with which steps of few requests are for this kernel, too.
NARROW = 64


def itemsize_of(spec: AttentionSpec) -> int:
    """Return the bytes of a number in the cache."""
    return 1 if spec.kv_dtype in kv.LIMITS else 2


def serves(spec: AttentionSpec, facts: DeviceFacts) -> bool:
    """Tell whether the kernel is for a specification that the portable one accepts."""
    return (
        not missing_gluon(facts)
        and spec.dtype in DTYPES
        and spec.head_dim in HEAD_DIMS
        and spec.num_kv_heads >= KV_HEADS
        and spec.num_heads <= MAX_GROUP * spec.num_kv_heads
        and spec.alibi is None
    )


def tiling(spec: AttentionSpec) -> Tiling:
    """Choose a tiling: as many tiles on their way as shared memory holds for every program."""
    if (spec.num_kv_heads, spec.head_dim, itemsize_of(spec)) == (KV_HEADS, NARROW, 2):
        return FEW_HEADS
    row = spec.head_dim * itemsize_of(spec)
    keys = max(16, min(32, TILE_BYTES // row))
    stage = WARPS * keys * 2 * (row + 4 * (spec.kv_scales == "token"))
    # Where warps meet, each leaves half of its values at once, maxima and sums.
    meeting = WARPS * MAX_GROUP * (spec.head_dim // 2 + 2) * 4
    room = UNIT_BYTES // PROGRAMS_PER_UNIT - RESERVED_BYTES - meeting
    return Tiling(WARPS, keys, min(room // stage, MAX_STAGES), PROGRAMS_PER_UNIT)


class Attention(attention.Attention):
    """See `hotshoe.slots.AttentionOp`.

    Args:
        ring: Tiling to use for all steps, instead of the one that is chosen where the kernel
            serves. That is for steps of more than a few requests.
    """

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts, ring: Tiling | None = None) -> None:
        super().__init__(spec, facts)
        self._rings = ring is not None or serves(spec, facts)
        if not self._rings:
            return
        from hotshoe_cuda.kernels.decode import decode_attention

        # Steps of so few requests are left to the portable kernel: one stream of a 7B took 4 % less
        # time a token by that, though its attention alone takes longer.
        self._left = 0 if ring or spec.head_dim == NARROW else FEW_REQS
        self._ring = decode_attention
        chosen = ring or tiling(spec)
        units = facts.compute_units * chosen.programs_per_unit
        self._programs = max(1, -(-units // spec.num_kv_heads))
        block_g = next_power_of_2(self._group)
        shared = "NUM_HEADS GROUP HEAD_DIM BLOCK_SIZE SCALE WINDOW SOFTCAP SINKS SCALES".split()
        self._ringing: dict[str, Any] = {name: self._prefill[name] for name in shared} | {
            "KEYS": chosen.keys,
            "STAGES": chosen.stages,
            "MIN_TILES": max(1, SHARE // (chosen.warps * chosen.keys)),
            "BLOCK_G": block_g,
            # Pieces that are joined at once: threads hold 64 numbers of them.
            "BLOCK_P": 64 // max(4, block_g * spec.head_dim // (32 * chosen.warps)),
            "num_warps": chosen.warps,
            "launch_pdl": True,
        }

    def _bind(self, cache: Tensor) -> None:
        super()._bind(cache)
        # Threads copy 16 bytes at once, which the compiler must see.
        parts = self._planes.tensors[:2]
        self._aligned = not any(
            x % 16 for x in (self._planes.stride, *(p.data_ptr() for p in parts))
        )

    def _run_decode(
        self,
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, ...],
        uniform: bool,
        slots: Tensor | None,
    ) -> None:
        if not (self._rings and self._aligned and sizes[0] > self._left):
            super()._run_decode(tensors, sizes, uniform, slots)
            return
        reqs, device = sizes[0], tensors[0].device
        pieces = self._programs * 2 * self._kv_heads * self._group
        scratch = torch.empty(pieces * (self._dim + 2), dtype=torch.float32, device=device)
        self._ring[(self._kv_heads, self._programs)](
            *tensors,
            tensors[0] if slots is None else slots,
            scratch,
            scratch[pieces * self._dim :],
            zeroed(self._counters, max(reqs, REQUEST_BLOCKS[1]) * self._kv_heads, device),
            *sizes,
            UNIFORM=uniform,
            BLOCK_R=request_block(reqs),
            EARLY=uniform and slots is not None and reqs <= EARLY_REQS,
            **self._ringing,
        )
