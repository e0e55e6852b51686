"""Candidate of slot `lora`: two products over tokens in the order of their adapters.

Few tokens are computed each for itself, at the speed of memory where each has another adapter. Of
more, every adapter that a step uses is read about once, whoever shares it. Of stacked matrices, b
is multiplied along its diagonal of `LoraSpec.parts` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraSpec, LoraTokens, Verdict
from hotshoe.slots.reference import lora as reference
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.tuning import split_of

#: Tokens up to which each is computed for itself, where no matrix has more than so many ranks.
ALONE, ALONE_RANKS = 128, 64
#: Tokens for each adapter up to which the same holds where the step itself says who has which one:
#: to order them takes five launches. Measured on an H200 with 128 adapters and with 1,024.
UNORDERED = 16
#: Bytes of a tile that one token is multiplied by, and its width.
ALONE_BYTES, ALONE_WIDTH = 32768, 1024
#: Tokens up to which few share an adapter, as in steps that decode.
FEW = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """How steps of some size are computed.

    Attributes:
        block_m: Tokens of a tile.
        block_r, block_k: Tile of a.
        share_r, block_n: Tile of b.
        stages: Triton's num_stages of the first product.
    """

    block_m: int
    block_r: int
    block_k: int
    share_r: int
    block_n: int
    stages: int


def supports(spec: LoraSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type."""
    return judge(facts, spec.dtype)


def plans(spec: LoraSpec, facts: DeviceFacts) -> tuple[Plan, Plan]:
    """Return the plans of few tokens, which read adapters, and of many, which compute.

    Tiles of 4-byte numbers are smaller, as registers hold as many bytes.
    """
    arch, share = arch_of(facts), spec.rank // max(1, len(spec.parts))
    size = 2 if spec.dtype == "float32" else 1
    most = 16 if size == 2 else 64 if arch.backend == "cuda" else 32
    ranks, own = (min(most, max(16, next_power_of_2(n))) for n in (spec.rank, share))
    found = []
    cells = (4096 if arch.backend == "cuda" else 2048) // size
    for block_m, block_r, block_k in ((16, 16, 256 // size**2), (64, ranks, 64 // size)):
        stage_bytes = (block_m + block_r) * block_k * 2 * size
        stages = min(4, arch.shared_bytes // 2 // stage_bytes) if arch.backend == "cuda" else 2
        block_n = min(cells // own, cells // block_m, next_power_of_2(spec.out_features))
        found.append(Plan(block_m, block_r, block_k, own, max(16, block_n), max(1, stages)))
    return found[0], found[1]


def most_tiles(tokens: int, adapters: int, block_m: int) -> int:
    """Return how many tiles of one adapter each so many tokens make at most."""
    used = min(tokens, adapters)
    return used + (tokens - used) // block_m


class Lora:
    """See `hotshoe.slots.LoraOp`. What `used` says is found on the device."""

    def __init__(self, spec: LoraSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import lora

        self._kernels, self._spec, self._facts = lora, spec, facts
        self._plans = plans(spec, facts)
        self._blocks = [self._blocks_of(plan.block_n) for plan in self._plans]
        self._share = spec.rank // max(1, len(spec.parts))
        self._alone = max(ALONE, UNORDERED * spec.max_adapters) if spec.late else ALONE
        ranks, size = next_power_of_2(self._share), getattr(torch, spec.dtype).itemsize
        self._ranks, self._width = ranks, min(ALONE_WIDTH, ALONE_BYTES // size // ranks)
        self._blocks_alone = self._blocks_of(self._width)
        self._align = math.gcd(16, *(spec.parts or (spec.out_features,)))
        chain = {"CHAINED": False} if spec.late else chaining(facts)
        self._shared = {"RANK": spec.rank, "num_warps": 4} | chain
        self._constants = self._shared | {
            "ADAPTERS": spec.max_adapters,
            "BLOCK_A": next_power_of_2(spec.max_adapters),
        }

    def _blocks_of(self, block_n: int) -> Tensor:
        """Return where each block of outputs begins, and where its matrix ends and has its ranks,
        as `expand` reads it."""
        parts, rows, begin = self._spec.parts or (self._spec.out_features,), [], 0
        share = self._spec.rank // len(parts)
        for index, size in enumerate(parts):
            end = begin + size
            rows += [(first, end, index * share) for first in range(begin, end, block_n)]
            begin = end
        return torch.tensor(rows, dtype=torch.int32, device=self._facts.device)

    def __call__(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, tokens: LoraTokens) -> None:
        count = len(x)
        if not count:
            return
        if count <= self._alone and self._share <= ALONE_RANKS:
            self._each(y, x, a, b, tokens.places)
            return
        if self._spec.late:
            tokens = reference.ordered(tokens.places, self._spec.max_adapters)
        self._tiled(y, x, a, b, tokens)

    def _each(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, places: Tensor) -> None:
        """Compute each token for itself."""
        count, spec, ranks = len(x), self._spec, self._ranks
        block_r = min(ranks, 16)
        most = min(ALONE_WIDTH, ALONE_BYTES // x.itemsize // block_r)
        block_k = min(most, next_power_of_2(spec.in_features))
        sums, parts = -(-spec.in_features // block_k), -(-spec.rank // block_r)
        low = torch.empty(sums, count, spec.rank, dtype=torch.float32, device=x.device)
        self._kernels.shrink_each[(count, parts, sums)](
            low, x, a, places, count, x.stride(0), K=spec.in_features, BLOCK_R=block_r,
            BLOCK_K=block_k, **self._shared,
        )  # fmt: skip
        self._kernels.expand_each[(count, len(self._blocks_alone))](
            y, low, b, places, self._blocks_alone, count, y.stride(0), N=spec.out_features,
            SHARE=self._share, SUMS=sums, BLOCK_R=ranks, BLOCK_N=self._width,
            BLOCK_S=next_power_of_2(sums), ALIGN=self._align, **self._shared,
        )  # fmt: skip

    def _tiled(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, tokens: LoraTokens) -> None:
        """Compute tiles of tokens that share an adapter."""
        count, spec = len(x), self._spec
        many = count > FEW
        plan, blocks = self._plans[many], self._blocks[many]
        tiles = most_tiles(count, spec.max_adapters, plan.block_m)
        parts = -(-spec.rank // plan.block_r)
        units = self._facts.compute_units
        split = split_of(tiles * parts, spec.in_features, plan.block_k, 4, units)
        low = torch.empty(split, count, spec.rank, dtype=torch.float32, device=x.device)
        shared = self._constants | {"BLOCK_M": plan.block_m, "SPLIT_K": split}
        self._kernels.shrink[(tiles, parts, split)](
            low, x, a, tokens.order, tokens.starts, count, x.stride(0), K=spec.in_features,
            BLOCK_R=plan.block_r, BLOCK_K=plan.block_k, num_stages=plan.stages, **shared,
        )  # fmt: skip
        self._kernels.expand[(tiles, len(blocks))](
            y, low, b, tokens.order, tokens.starts, blocks, count, y.stride(0),
            N=spec.out_features, SHARE=self._share, ALIGN=self._align,
            BLOCK_R=plan.share_r, BLOCK_N=plan.block_n, num_stages=1, **shared,
        )  # fmt: skip
