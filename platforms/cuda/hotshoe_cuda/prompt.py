"""Candidate `streaming` of slot `attention`, on sm_90: prompts by warpgroups that divide the work,
requests with one query by warps that have keys of their own (`decode`).

Prompts over a cache of 8 bits, or over one that the copy engine cannot read, go through the
portable kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, Verdict, accept_unless
from hotshoe_cuda import decode
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import attention, kv
from hotshoe_triton.attention import REQUEST_BLOCKS, zeroed
from hotshoe_triton.device import next_power_of_2

#: Above cuDNN's candidate, and below it where that computes long prompts as fast.
SCORE, LOWER = 65, 55
DTYPES = ("bfloat16", "float16")
#: Rows of a warpgroup, and channels that the copy engine brings at once.
ROWS, PANEL = 64, 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of a program's work: warpgroups of 64 rows, keys of a tile, tiles on their way; and how
    many keys a row must see at least, until such programs are faster than the portable ones."""

    consumers: int
    keys: int
    stages: int
    least: int = 0


#: Keys below which sharing them among programs costs more than it gains, and most such programs.
PART, MAX_PARTS = 1024, 8
#: By channels, padded.
TILINGS = {64: Tiling(3, 128, 3, 2048), 128: Tiling(2, 128, 2, 2048), 256: Tiling(2, 64, 2)}
#: Blocks below LARGE have other tilings where asking for many pieces of a tile binds a program.
LARGE, SMALL_BLOCKS = 32, {128: Tiling(3, 64, 3, 2048)}


def width_of(spec: AttentionSpec) -> int:
    """Return the channels of a head, padded."""
    return max(PANEL, next_power_of_2(spec.head_dim))


def tiling_of(spec: AttentionSpec) -> Tiling:
    """Return the shipped tiling."""
    width = width_of(spec)
    small = SMALL_BLOCKS if spec.block_size < LARGE else {}
    return small.get(width, TILINGS[width])


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what the kernel is written for; the rest as for Triton, whose cache it reads."""
    paged = attention.supports(spec, facts)
    if not paged.accepted:
        return paged
    missing = missing_gluon(facts)
    narrow = spec.kv_dtype in kv.LIMITS
    refusals = {
        missing: bool(missing),
        f"kv_dtype {spec.kv_dtype} is left to the portable kernel with such heads": narrow
        and not decode.serves(spec, facts),
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
    }
    if narrow:
        return accept_unless(refusals, SCORE, "warps with keys of their own for single queries")
    slow = tiling_of(spec) in SMALL_BLOCKS.values()
    return accept_unless(
        refusals, LOWER if slow else SCORE, "warpgroups that divide the work for prompts"
    )


class Attention(decode.Attention):
    """See `hotshoe.slots.AttentionOp`.

    Args:
        prompts: Tiling to use instead of the shipped one.
        ring: As `decode.Attention` has it.
        stream: False where the kernel is not there: all is the portable ones' then.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        facts: DeviceFacts,
        prompts: Tiling | None = None,
        stream: bool = True,
        ring: decode.Tiling | None = None,
    ) -> None:
        super().__init__(spec, facts, ring)
        self._streams = stream and spec.kv_dtype == spec.dtype
        self._units = facts.compute_units
        if not self._streams:
            return
        from hotshoe_cuda.kernels.prompt import prompt_attention

        width, chosen = width_of(spec), prompts or tiling_of(spec)
        self._stream, self._least = prompt_attention, chosen.least
        self._rows = chosen.consumers * ROWS // self._group
        self._box = min(spec.block_size, chosen.keys)
        shared = "NUM_HEADS GROUP HEAD_DIM BLOCK_SIZE SCALE WINDOW SOFTCAP SINKS".split()
        self._streaming: dict[str, Any] = {name: self._prefill[name] for name in shared} | {
            "CONSUMERS": chosen.consumers,
            "BLOCK_N": chosen.keys,
            "BLOCK_D": width,
            "STAGES": chosen.stages,
            "REST": min(width // 2, next_power_of_2(max(spec.head_dim - width // 2, 16))),
            "num_warps": 4,
            "launch_pdl": True,
        }

    def _bind(self, cache: Tensor) -> None:
        super()._bind(cache)
        self._tiles = None
        dim, size = self._dim, self._spec.block_size
        if not self._streams or self._planes.stride % dim or cache.stride(0) % 8:
            return
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        self._page_rows = self._planes.stride // dim
        count = (cache.size(1) - 1) * self._page_rows + self._kv_heads * size
        layout = NVMMASharedLayout(128, 16, 2)
        self._tiles = [
            TensorDescriptor.from_tensor(
                part.as_strided((count, dim), (dim, 1)), [self._box, PANEL], layout
            )
            for part in self._planes.tensors[:2]
        ]

    def _parts(self, tiles: int, longest: int) -> int:
        """Return how many programs share a tile of queries, where there are so many of these."""
        programs = max(tiles, 1) * self._kv_heads
        return max(1, min(self._units // programs, longest // PART, MAX_PARTS))

    def _meeting(self, tiles: int, parts: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the memory in which programs that share a tile leave what they found."""
        places = tiles * self._kv_heads * self._streaming["CONSUMERS"]
        counters = zeroed(self._counters, max(places, REQUEST_BLOCKS[1] * self._kv_heads), device)
        rows = places * ROWS * (parts if parts > 1 else 0)
        width = self._streaming["BLOCK_D"]
        scratch = torch.empty(max(rows * (width + 2), 1), dtype=torch.float32, device=device)
        return scratch, scratch[rows * width :], counters

    def _run_prefill(
        self, tensors: tuple[Tensor, ...], sizes: tuple[int, ...], longest: int
    ) -> None:
        seen = min(longest, self._spec.window or longest)
        if self._tiles is None or seen < self._least:
            super()._run_prefill(tensors, sizes, longest)
            return
        out, q, _k, _v, _k_scale, _v_scale, *rest = tensors
        reqs, q_stride, table_stride, _ = sizes
        # One tile for each request may be empty; of one request it mostly is.
        tiles = len(q) // self._rows + reqs
        parts = self._parts(tiles - (reqs == 1), longest)
        self._stream[(self._kv_heads, tiles, parts)](
            out,
            q,
            *self._tiles,
            *rest,
            *self._meeting(tiles, parts, q.device),
            reqs,
            q_stride,
            table_stride,
            self._page_rows,
            **self._streaming,
        )
