"""Cases of slot `rotary_and_cache`, for the plain layout and those that attention declares.

The cache is NaN before the call: what the step's tokens own must hold their keys and values
afterwards, and everything else must be NaN still, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import PLAIN_LAYOUT, KVLayout, RotaryAndCacheSpec
from hotshoe.slots.reference.kv import kv_of
from hotshoe_conformance.cases.base import (
    DTYPES,
    FAR,
    Cost,
    Setup,
    Suite,
    in_dtype,
    normal,
    reference,
    vary,
)
from hotshoe_conformance.cases.kv import GIVEN, QUANTIZED, STEPS, give_scales, held_as
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected


@dataclass(frozen=True, slots=True)
class Tokens:
    """A step's tokens, in random slots; `far` elements lie before the first block in use."""

    count: int
    far: int = 0


SLOT = "rotary_and_cache"
BASE = RotaryAndCacheSpec(4, 2, 64, 64, "float32", "float32", 16, PLAIN_LAYOUT)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"num_heads": 14},
    {"head_dim": 128, "rotary_dim": 128},
    {"head_dim": 96, "rotary_dim": 96},
    {"head_dim": 256, "rotary_dim": 256},
    {"rotary_dim": 0},
    {"rotary_dim": 32},
    {"interleaved": True},
    {"interleaved": True, "rotary_dim": 16},
    {"qk_norm_eps": 1e-6},
    {"qk_norm_eps": 1e-6, "qk_norm_offset": 1.0},
    {"qk_norm_eps": 1e-6, "rotary_dim": 0},
    {"block_size": 8},
    {"block_size": 32},
    {"block_size": 64},
    *QUANTIZED,
    {"rotary_dim": 16, "qk_norm_eps": 1e-6, **QUANTIZED[0]},
)
#: What is tried of layouts that have room for values as wide as keys.
NARROW: tuple[dict[str, Any], ...] = (
    {"v_head_dim": 32},
    {"head_dim": 96, "v_head_dim": 64, "rotary_dim": 32, "qk_norm_eps": 1e-6},
)
SHAPES = (Tokens(1), Tokens(2), Tokens(65), Tokens(700))
MAX_POSITION = 4096
#: A rotated pair shares its rounding, and a norm's weight may be rounded before.
ROUNDED_OPERANDS = 16
#: Steps of an 8-bit type that a number may be off: one, and what its scale was rounded by.
NEIGHBOR = 1.5


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    found = []
    for layout in (PLAIN_LAYOUT, *layouts):
        base = replace(BASE, layout=layout)
        narrow = [
            Setup(in_dtype(spec, d), Tokens(9), True)
            for spec in vary(base, NARROW)[1:]
            for d in DTYPES
        ]
        if layout.wide_values:
            found += narrow
            continue
        found += [Setup(spec, Tokens(9), True) for spec in vary(base, VARIATIONS)] + narrow
        found += [Setup(in_dtype(base, d), s, s.count < 100) for d in DTYPES for s in SHAPES]
        far = in_dtype(base, "bfloat16")
        found.append(Setup(far, Tokens(40, FAR), bytes=4 * FAR + (1 << 20)))
    return found


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    head_dim = rng.choice((32, 64, 80, 128))
    kv_heads = rng.choice((1, 2, 3, 8))
    spec = RotaryAndCacheSpec(
        kv_heads * rng.randrange(1, 6),
        kv_heads,
        head_dim,
        rng.choice((0, head_dim // 2, head_dim, head_dim)),
        "float32",
        "float32",
        rng.choice((8, 16, 32)),
        rng.choice((PLAIN_LAYOUT, *(layout for layout in layouts if not layout.wide_values))),
        interleaved=rng.random() < 0.3,
        qk_norm_eps=rng.choice((None, 1e-6, 1e-5)),
        qk_norm_offset=rng.choice((0.0, 1.0)),
    )
    return Setup(in_dtype(spec, rng.choice(DTYPES)), Tokens(rng.randrange(1, 90)))


@dataclass(slots=True)
class RotaryProblem:
    """The projection's rows, positions, slots, and the cache's size in blocks."""

    spec: RotaryAndCacheSpec
    shape: Tokens
    qkv: Tensor
    positions: Tensor
    cos_sin: Tensor | None
    slots: Tensor
    num_blocks: int
    qk_norm: tuple[Tensor, Tensor] | None

    def _far_blocks(self) -> int:
        spec = self.spec
        return -(-self.shape.far // (spec.block_size * spec.num_kv_heads * spec.head_dim))

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        call, cache = self._bind(op, place)
        q = call()
        far = self._far_blocks()
        part = cache if not far else cache[:, far:].cpu()
        return {"q": q, "cache": self._plain(part.cpu())}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], Tensor]:
        spec, far = self.spec, self._far_blocks()
        numel, dtype, poison = held_as(spec)
        shape = (2, far + self.num_blocks, numel + spec.layout.gap)
        cache = place.empty(*shape, dtype=dtype)[..., :numel]
        cache[:, far:].fill_(poison)
        give_scales(op, spec, place)
        qkv, positions = place(self.qkv, written=True), place(self.positions)
        slots = place((self.slots + far * spec.block_size).int())
        cos_sin = None if self.cos_sin is None else place(self.cos_sin)
        norms = None
        if self.qk_norm is not None:
            norms = (place(self.qk_norm[0]), place(self.qk_norm[1]))
        return lambda: op(qkv, positions, cos_sin, cache, slots, norms), cache

    def _plain(self, cache: Tensor) -> Tensor:
        """Return [slots, 2 * kv heads * head_dim] of a cache in this problem's layout; channels of
        narrow values come again until they are as many as those of keys."""
        spec = self.spec
        paged = kv_of(cache, spec, spec.layout, torch.tensor(GIVEN))
        k, v = paged.gather(torch.arange(self.num_blocks), self.num_blocks * spec.block_size)
        v = v[..., torch.arange(spec.head_dim) % spec.value_dim]
        both = torch.cat((k.flatten(1), v.flatten(1)), dim=1)
        return both.masked_fill(both.isnan(), torch.nan)  # of one sign

    def expected(self) -> Mapping[str, Expected]:
        spec = replace(in_dtype(self.spec, "float32"), layout=PLAIN_LAYOUT)
        numel, dtype, poison = held_as(spec)
        cache = torch.full((2, self.num_blocks, numel), poison, dtype=dtype)
        norms = None
        if self.qk_norm is not None:
            norms = (self.qk_norm[0].float(), self.qk_norm[1].float())
        op = reference(SLOT, spec)
        op.kv_scales = torch.tensor(GIVEN)
        q = op(self.qkv.float(), self.positions, self.cos_sin, cache, self.slots.int(), norms)
        stored = replace(self, spec=spec)._plain(cache)
        heads = stored.unflatten(1, (2 * spec.num_kv_heads, spec.head_dim))
        kind, slack = self.spec.kv_dtype, torch.zeros_like(stored)
        if kind in STEPS:  # rounded twice, so some numbers go to a neighbor
            kind, step = "float32", NEIGHBOR * STEPS[kind]
            reach = heads.abs().amax(-1, keepdim=True) if spec.kv_dtype == "int8" else heads.abs()
            slack = step * reach.expand(heads.shape).flatten(1)
        return {
            "q": Close(q, self.spec.dtype, _largest(q)),
            "cache": Written(stored, kind, _largest(heads).flatten(1), self.slots, slack),
        }

    def alone(self) -> tuple[RotaryProblem, slice]:
        at = slice(len(self.qkv) // 2, len(self.qkv) // 2 + 1)
        parts = {"qkv": self.qkv[at], "positions": self.positions[at], "slots": self.slots[at]}
        return replace(self, **parts), at

    def cost(self) -> Cost:
        return Cost(2 * self.qkv.nbytes, 6 * self.qkv.numel())


@dataclass(frozen=True, slots=True)
class Written:
    """A cache whose step's slots hold what they should, and whose others were not touched."""

    value: Tensor
    dtype: str
    magnitude: Tensor
    slots: Tensor
    slack: Tensor

    def check(self, got: Tensor) -> Any:
        rest = torch.ones(len(got), dtype=torch.bool)
        rest[self.slots] = False
        untouched = torch.full_like(got[rest], float("nan"))
        finding = Exact(untouched).check(got[rest])
        if finding.message:
            return replace(
                finding, message=f"slots of other tokens were written: {finding.message}"
            )
        at = self.slots
        close = Close(self.value[at], self.dtype, self.magnitude[at], self.slack[at])
        return close.check(got[at])


def _largest(heads: Tensor) -> Tensor:
    """Return each head's largest magnitude in the place of all of its channels."""
    return ROUNDED_OPERANDS * heads.abs().amax(-1, keepdim=True).expand(heads.shape)


def _problem(setup: Setup, source: torch.Generator) -> RotaryProblem:
    spec, shape = setup.spec, setup.shape
    keys = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    width = keys + spec.num_kv_heads * spec.value_dim
    num_blocks = -(-shape.count // spec.block_size) + 3
    slots = torch.randperm(num_blocks * spec.block_size, generator=source)[: shape.count]
    positions = torch.randint(0, MAX_POSITION, (shape.count,), generator=source)
    cos_sin = None
    if spec.rotary_dim:
        frequencies = 10000.0 ** (-torch.arange(0, spec.rotary_dim, 2) / spec.rotary_dim)
        angles = torch.arange(MAX_POSITION)[:, None] * frequencies
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    norms = [normal((spec.head_dim,), spec.dtype, source) for _ in range(2)]
    return RotaryProblem(
        spec,
        shape,
        normal((shape.count, width), spec.dtype, source),
        positions.int(),
        cos_sin,
        slots,
        num_blocks,
        None if spec.qk_norm_eps is None else (norms[0], norms[1]),
    )


LLAMA = RotaryAndCacheSpec(32, 8, 128, 128, "bfloat16", "bfloat16", 32, PLAIN_LAYOUT)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    even = [layout for layout in (PLAIN_LAYOUT, *layouts) if not layout.wide_values]
    specs = [replace(LLAMA, layout=layout) for layout in even]
    return [Setup(in_dtype(spec, d), Tokens(1024)) for d in DTYPES[:2] for spec in specs]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
