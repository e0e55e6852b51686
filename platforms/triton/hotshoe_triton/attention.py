"""Candidate of slot `attention`: one launch for decode rows, one for requests with more queries.

Keys and values are head-major inside a block, so a tile of one head is one contiguous stretch.
`rotary.py` writes that layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, KVLayout, Verdict, whole_step
from hotshoe_triton import kv
from hotshoe_triton.device import Arch, arch_of, chaining, judge, next_power_of_2

LAYOUT = KVLayout("head-major", "htd", "htd")
MAX_HEAD_DIM = 256
MIN_BLOCK_SIZE = 16
MIN_ROWS = 16
#: Requests whose lengths the decode kernel keeps in registers; one kernel is compiled for each,
#: and beyond them for each power of two.
REQUEST_BLOCKS = (64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of one kernel's work.

    Attributes:
        rows: Query rows of a tile (tokens times heads of one KV head); prefill only.
        keys: Keys of a tile.
        warps, stages: Triton's num_warps and num_stages.
        programs_per_unit: Decode programs per compute unit, over all KV heads.
        share: Keys below which sharing them among decode programs costs more than it gains.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    programs_per_unit: int = 2
    share: int = 256


Table: TypeAlias = dict[str, tuple[Tiling, ...]]
#: By family, for 16-bit elements: where head_dim is a power of two up to 128, elsewhere up to 128,
#: and beyond; what is missing is as what comes before it.
PREFILL: Table = {
    "ampere": (Tiling(128, 64, 8, 3), Tiling(64, 64, 8, 2)),
    "hopper": (Tiling(256, 64, 8, 3), Tiling(128, 64, 8, 2)),
    "blackwell": (Tiling(128, 128, 8, 2), Tiling(128, 64, 8, 2)),
    "small": (Tiling(64, 32, 4, 2), Tiling(32, 32, 4, 2)),
    "cdna": (Tiling(128, 64, 4, 1), Tiling(64, 32, 4, 1)),
    "rdna": (Tiling(32, 16, 4, 1), Tiling(16, 16, 8, 1)),
}
DECODE: Table = {
    "ampere": (Tiling(16, 64, 4, 3), Tiling(16, 32, 4, 3)),
    "hopper": (Tiling(16, 64, 2, 2, 4, 64), Tiling(16, 64, 4, 3, 2), Tiling(16, 32, 4, 3, 2)),
    "blackwell": (Tiling(16, 64, 4, 3), Tiling(16, 64, 4, 3, 1)),
    "small": (Tiling(16, 32, 4, 3), Tiling(16, 32, 4, 2, 1)),
    "cdna": (Tiling(16, 64, 4, 1, 4), Tiling(16, 32, 4, 1, 2)),
    "rdna": (Tiling(16, 32, 4, 1, 4), Tiling(16, 16, 8, 1, 2)),
}
#: For caches of 8 bits, where the tilings above would spill registers.
NARROW_DECODE: Table = {
    "hopper": (Tiling(16, 128, 4, 2, 4), Tiling(16, 64, 4, 3, 1)),
    "hopper int8": (Tiling(16, 128, 4, 3, 2), Tiling(16, 64, 4, 3, 1)),
    "hopper float8_e5m2": (Tiling(16, 128, 4, 3, 2), Tiling(16, 64, 4, 3, 1)),
    "rdna": (Tiling(16, 16, 4, 1, 4), Tiling(16, 16, 8, 1, 2)),
}
NARROW_PREFILL: Table = {
    "ampere": (Tiling(64, 64, 8, 2), Tiling(64, 32, 8, 2)),
    "hopper": (Tiling(128, 32, 4, 3), Tiling(64, 64, 8, 2)),
}
#: Decode of 16-bit caches in steps of few requests, where head_dim is a power of two up to 128. A
#: chain of loads takes the time there, which more programs with more warps shorten.
FEW: dict[str, Tiling] = {"hopper": Tiling(16, 64, 4, 2, 2, 64)}
#: Most requests of such a step.
FEW_REQS = 4
#: Products of float32 keep their operands in registers.
FLOAT32 = Tiling(16, 16, 8, 1)


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    size = spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            **kv.refusals(spec, facts),
            f"head_dim {spec.head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}": bool(
                spec.head_dim % 8 or spec.head_dim > MAX_HEAD_DIM
            ),
            f"block_size {size} is not a power of two from {MIN_BLOCK_SIZE}": bool(
                size < MIN_BLOCK_SIZE or size & (size - 1)
            ),
            f"{spec.num_heads} heads are not a multiple of {spec.num_kv_heads} KV heads": bool(
                spec.num_heads % spec.num_kv_heads
            ),
            f"more than 64 heads share a KV head ({spec.num_heads} / {spec.num_kv_heads})": (
                spec.num_heads > 64 * spec.num_kv_heads
            ),
            f"scale {spec.scale} is not positive": not spec.scale > 0,
            "soft caps and ALiBi are not computed together": spec.softcap is not None
            and spec.alibi is not None,
        },
    )


def declared_layout(spec: AttentionSpec, facts: DeviceFacts) -> KVLayout:
    """Say which layout the operation for a specification reads."""
    return LAYOUT


def tiling(tables: tuple[Table, Table], spec: AttentionSpec, arch: Arch) -> Tiling:
    """Choose a tiling, from the second table first if the cache is of 8 bits."""
    dim = spec.head_dim
    if spec.dtype == "float32":
        return FLOAT32
    found = tables[0][arch.family]
    if spec.kv_dtype in kv.LIMITS:
        found = tables[1].get(arch.family, found)
        found = tables[1].get(f"{arch.family} {spec.kv_dtype}", found)
    size = 2 if dim > 128 else int(dim != next_power_of_2(dim))
    return found[min(size, len(found) - 1)]


def few_tiling(spec: AttentionSpec, arch: Arch) -> Tiling | None:
    """Return how steps of few requests are decoded, or None for as all others."""
    dim, plain = spec.head_dim, spec.dtype == spec.kv_dtype != "float32"
    return FEW.get(arch.family) if plain and dim == next_power_of_2(dim) <= 128 else None


def request_block(reqs: int) -> int:
    """Return how many requests the decode kernel is compiled for."""
    return next((size for size in REQUEST_BLOCKS if size >= reqs), next_power_of_2(reqs))


def decoding(tiling: Tiling, group: int, width: int) -> dict[str, int]:
    """Return a decode kernel's constants, for so many heads of a program and channels of a head."""
    block_g = next_power_of_2(group)
    return {
        "MIN_TILES": max(1, tiling.share // tiling.keys),
        "BLOCK_M": max(MIN_ROWS, block_g),
        "BLOCK_N": tiling.keys,
        "BLOCK_G": block_g,
        "BLOCK_P": max(1, min(16, 4096 // (block_g * next_power_of_2(width)))),
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }


def prefilling(tiling: Tiling, group: int) -> dict[str, int]:
    """Return a prefill kernel's constants, for so many heads of a program."""
    return {
        "BLOCK_M": max(tiling.rows, next_power_of_2(group)),
        "BLOCK_N": tiling.keys,
        "BLOCK_R": 256,
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }


def sloping(spec: AttentionSpec) -> dict[str, float]:
    """Return the constants of what falls with the distance; a step of 0 for nothing."""
    heads, step = spec.alibi.series if spec.alibi else (0, 0.0)
    factor = spec.alibi.factor / spec.scale if spec.alibi else 0.0
    first = spec.alibi.first if spec.alibi else 0
    return {"SLOPE": step, "SLOPE_HEADS": heads, "SLOPE_FIRST": first, "SLOPE_FACTOR": factor}


def num_shared(group: int) -> int:
    """Return how many tokens of a sequence are computed together: those that fill a tile's rows."""
    return max(1, MIN_ROWS // next_power_of_2(group))


def zeroed(counters: list[Tensor], needed: int, device: torch.device) -> Tensor:
    """Return so many zeros. Earlier, smaller ones stay alive: captured graphs use them."""
    if not counters or counters[-1].numel() < needed:
        counters.append(torch.zeros(2 * needed, dtype=torch.int32, device=device))
    return counters[-1]


class Attention:
    """See `hotshoe.slots.AttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        alone: Compute each decode row in one program, so that its result is the same in every
            batch; slower where few long requests run.
        decode, prefill: Tilings to use instead of the shipped ones.
    """

    layout = LAYOUT
    kv_scales: Tensor | None = None

    prepare = staticmethod(whole_step)

    @property
    def shares_keys(self) -> bool:
        """See `hotshoe.slots.SharingAttentionOp`."""
        return self._together > 1

    def __init__(
        self,
        spec: AttentionSpec,
        facts: DeviceFacts,
        alone: bool = False,
        decode: Tiling | None = None,
        prefill: Tiling | None = None,
    ) -> None:
        from hotshoe_triton.kernels.decode import decode_attention
        from hotshoe_triton.kernels.prefill import prefill_attention

        arch = arch_of(facts)
        few = decode or few_tiling(spec, arch)
        decode = decode or tiling((DECODE, NARROW_DECODE), spec, arch)
        prefill = prefill or tiling((PREFILL, NARROW_PREFILL), spec, arch)
        group = spec.num_heads // spec.num_kv_heads
        self._width = spec.num_heads * spec.head_dim
        self._kv_heads, self._group, self._dim = spec.num_kv_heads, group, spec.head_dim
        self._decode_kernel, self._prefill_kernel = decode_attention, prefill_attention
        self._spec = spec
        shared = (
            {
                "NUM_HEADS": spec.num_heads,
                "GROUP": group,
                "HEAD_DIM": spec.head_dim,
                "BLOCK_SIZE": spec.block_size,
                "SCALE": spec.scale,
                "WINDOW": spec.window or 0,
                "SOFTCAP": spec.softcap or 0.0,
                "SINKS": spec.sinks,
                "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
            }
            | sloping(spec)
            | kv.constants(spec)
            | chaining(facts)
        )
        self._sinks = spec.sinks
        self._alone = alone

        def decoded(tiling: Tiling, together: int = 1) -> tuple[int, dict[str, Any]]:
            units = facts.compute_units * tiling.programs_per_unit
            constants = decoding(tiling, group * together, spec.head_dim)
            constants |= {"ALONE": alone, "SHARED": together}
            return max(1, -(-units // spec.num_kv_heads)), shared | constants

        self._decode = decoded(decode)
        self._few = self._decode if alone or few is None else decoded(few)
        self._together = 1 if alone else num_shared(group)
        self._joint = decoded(decode, self._together)
        self._prefill = shared | prefilling(prefill, group)
        self._block_q = self._prefill["BLOCK_M"] // group
        self._cache: Tensor | None = None
        self._counters: list[Tensor] = []

    def _bind(self, cache: Tensor) -> None:
        self._cache = cache
        self._planes = kv.planes(cache, self._spec, self.kv_scales)

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        if cache is not self._cache:
            self._bind(cache)
        assert (sinks is not None) == self._sinks
        tokens, reqs = q.size(0), prepared.num_reqs
        out = torch.empty((tokens, self._width), dtype=q.dtype, device=q.device)
        if reqs == 0:
            return out
        single = prepared.max_query_len == 1
        table = prepared.block_table
        tensors = (out, q, *self._planes.tensors, table)
        tensors += (prepared.query_start_loc, prepared.seq_lens, q if sinks is None else sinks)
        sizes = (reqs, q.stride(0), table.stride(0), self._planes.stride)
        if prepared.spans is not None and self._together > 1:
            self._launch(
                self._joint,
                self._together,
                tensors,
                sizes,
                prepared.spans,
                UNIFORM=True,
                EARLY=False,
            )
            return out
        if single or reqs > 1:
            slots = prepared.slot_mapping if prepared.settled else None
            self._run_decode(tensors, sizes, single and tokens == reqs, slots)
        if not single:
            self._run_prefill(tensors, sizes, prepared.max_seq_len)
        return out

    def _run_prefill(
        self, tensors: tuple[Tensor, ...], sizes: tuple[int, ...], longest: int
    ) -> None:
        """Compute requests of several queries; the longest has so many tokens."""
        grid = (self._kv_heads, len(tensors[1]) // self._block_q + sizes[0])
        self._prefill_kernel[grid](*tensors, *sizes, **self._prefill)

    def _run_decode(
        self,
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, ...],
        uniform: bool,
        slots: Tensor | None,
    ) -> None:
        """Compute requests of one query.

        Args:
            uniform: All requests are.
            slots: Of the step's tokens; None for a step that is not settled.
        """
        chosen = self._few if sizes[0] <= FEW_REQS else self._decode
        early = slots is not None
        self._launch(chosen, 1, tensors, sizes, tensors[0], UNIFORM=uniform, EARLY=early)

    def _launch(
        self,
        chosen: tuple[int, dict[str, Any]],
        together: int,
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, ...],
        spans: Tensor,
        **constants: bool,
    ) -> None:
        """Launch the kernel of decode rows.

        Args:
            chosen: Programs over a KV head, and their constants.
            together: Requests that one of them computes at once.
        """
        reqs, device = sizes[0], tensors[0].device
        programs = reqs if self._alone else chosen[0]
        pieces = programs * 2 * self._kv_heads * self._group * together
        scratch = torch.empty(pieces * (self._dim + 2), dtype=torch.float32, device=device)
        self._decode_kernel[(self._kv_heads, programs)](
            *tensors,
            spans,
            scratch,
            scratch[pieces * self._dim :],
            zeroed(self._counters, max(reqs, REQUEST_BLOCKS[1]) * self._kv_heads, device),
            *sizes,
            BLOCK_R=request_block(reqs),
            **chosen[1],
            **constants,
        )
