"""Specifications and calls of state-space blocks, for `cases.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    RgLruOp,
    RgLruSpec,
    RgLruWeights,
    SelectiveScanOp,
    SelectiveScanSpec,
    SelectiveScanWeights,
    ShortConvOp,
    ShortConvSpec,
    ShortConvWeights,
    StateSpaceOp,
    StateSpaceSpec,
    StateSpaceWeights,
)
from hotshoe_triton import rg_lru, selective_scan, short_conv, state_space

#: Of NemotronH, Bamba and Falcon-H1.
NEMOTRON = StateSpaceSpec(
    128, 64, 128, 8, 4, *["bfloat16"] * 2, "float32", 32, norm="after", norm_eps=1e-5, norm_groups=8
)
BAMBA = replace(NEMOTRON, num_groups=1, norm_groups=1, checkpoints="all")
FALCON = StateSpaceSpec(32, 64, 256, 1, 4, *["bfloat16"] * 2, "float32", 32)
SPACES = {
    "128x64x128": NEMOTRON,
    "128x64x128 one norm": BAMBA,
    "32x64x256": FALCON,
    "32x64x128 float16": replace(FALCON, state_size=128, dtype="float16"),
    "32x64x128 float32": replace(FALCON, state_size=128, dtype="float32"),
}
#: Of Falcon-Mamba and Mamba 2.8B.
SELECTIVE = SelectiveScanSpec(
    8192, 16, 256, 4, *["bfloat16"] * 2, "float32", 32, "all", norm_eps=1e-6
)
SELECTIVES = {
    "8192x16": SELECTIVE,
    "5120x16": replace(SELECTIVE, inner_size=5120, dt_rank=160, checkpoints="none", norm_eps=None),
    "8192x16 float16": replace(SELECTIVE, dtype="float16"),
    "8192x16 float32": replace(SELECTIVE, dtype="float32"),
}
#: Of RecurrentGemma 2B and 9B.
RECURRENT = RgLruSpec(2560, 10, 4, *["bfloat16"] * 2, "float32", 32, "all")
RECURRENTS = {
    "2560": RECURRENT,
    "4096": replace(RECURRENT, inner_size=4096, num_heads=16, checkpoints="none"),
    "2560 float16": replace(RECURRENT, dtype="float16"),
    "2560 float32": replace(RECURRENT, dtype="float32"),
}
#: Of LFM2 and LFM3.
CONV = ShortConvSpec(2048, 3, *["bfloat16"] * 2, 32, "all")
CONVS = {
    "2048x3": CONV,
    "2048x7": replace(CONV, conv_width=7, checkpoints="none"),
    "2048x3 float16": replace(CONV, dtype="float16"),
    "2048x3 float32": replace(CONV, dtype="float32"),
}


def scan(spec: StateSpaceSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of a state-space block over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not state_space.supports(spec, facts).accepted:
            return False
        call_spaces(state_space.StateSpace(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def scan_selectively(
    spec: SelectiveScanSpec, tokens: int, reqs: int = 8
) -> Callable[[DeviceFacts], bool]:
    """Return a call of a Mamba-1 block over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not selective_scan.supports(spec, facts).accepted:
            return False
        call_selective(selective_scan.SelectiveScan(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def recur(spec: RgLruSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of a recurrent block over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not rg_lru.supports(spec, facts).accepted:
            return False
        call_recurrent(rg_lru.RgLru(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def convolve(spec: ShortConvSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of a short convolution over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not short_conv.supports(spec, facts).accepted:
            return False
        call_short(short_conv.ShortConv(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def call_short(op: ShortConvOp, spec: ShortConvSpec, tokens: int, reqs: int, device: str) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""
    floats, inner = _maker(device), spec.inner_size
    weights = ShortConvWeights(
        floats(inner, spec.conv_width, dtype=spec.dtype), floats(inner, dtype=spec.dtype)
    )
    conv = floats(64, spec.conv_width - 1, inner, dtype=spec.conv_dtype)
    projected = floats(reqs * tokens, 3 * inner, dtype=spec.dtype)
    op(projected, (conv,), _step(floats, tokens, reqs), weights)


def call_recurrent(op: RgLruOp, spec: RgLruSpec, tokens: int, reqs: int, device: str) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""
    floats, inner, size = _maker(device), spec.inner_size, spec.head_dim
    weights = RgLruWeights(
        *(floats(*shape, dtype=spec.dtype) for shape in ((inner, spec.conv_width), (inner,))),
        *(floats(*shape) for shape in ((spec.num_heads, size, 2 * size), (2, inner), (inner,))),
    )
    conv = floats(64, spec.conv_width - 1, inner, dtype=spec.conv_dtype)
    states = floats(64, 1, inner, 1, dtype=spec.state_dtype)
    projected = floats(reqs * tokens, 2 * inner, dtype=spec.dtype)
    op(projected, (conv, states), _step(floats, tokens, reqs), weights)


def call_selective(
    op: SelectiveScanOp, spec: SelectiveScanSpec, tokens: int, reqs: int, device: str
) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""
    floats = _maker(device)
    inner, made, width = spec.inner_size, sum(spec.made), spec.conv_width
    weights = SelectiveScanWeights(
        *(floats(*shape, dtype=spec.dtype) for shape in ((inner, width), (inner,))),
        *(floats(*shape, dtype=spec.dtype) for shape in ((made, inner), (inner, spec.dt_rank))),
        *(floats(*shape) for shape in ((inner,), (inner, spec.state_size), (inner,))),
        None,
    )
    conv = floats(64, width - 1, inner, dtype=spec.conv_dtype)
    states = floats(64, 1, inner, spec.state_size, dtype=spec.state_dtype)
    projected = floats(reqs * tokens, 2 * inner, dtype=spec.dtype)
    op(projected, (conv, states), _step(floats, tokens, reqs), weights)


def _maker(device: str) -> Callable[..., Tensor]:
    def floats(*shape: int, dtype: str = "float32") -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    return floats


def _step(floats: Callable[..., Tensor], tokens: int, reqs: int) -> AttentionMetadata:
    starts, lens, slots = (floats(n).int() for n in (reqs + 1, reqs, reqs * tokens))
    return AttentionMetadata(reqs, starts, lens, floats(reqs, 32).int(), slots, tokens, 512)


def call_spaces(
    op: StateSpaceOp, spec: StateSpaceSpec, tokens: int, reqs: int, device: str
) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""
    floats = _maker(device)
    step = _step(floats, tokens, reqs)
    weights = StateSpaceWeights(
        floats(spec.conv_size, spec.conv_width, dtype=spec.dtype),
        floats(spec.conv_size, dtype=spec.dtype),
        *(floats(spec.num_heads) for _ in range(3)),
        None if spec.norm == "none" else floats(spec.inner_size, dtype=spec.dtype),
    )
    conv = floats(64, spec.conv_width - 1, spec.conv_size, dtype=spec.conv_dtype)
    states = floats(64, spec.num_heads, spec.head_dim, spec.state_size, dtype=spec.state_dtype)
    projected = floats(reqs * tokens, sum(spec.sections), dtype=spec.dtype)
    op(projected, (conv, states), step, weights)


def blocks_with_states() -> Iterator[tuple[str, Callable[[DeviceFacts], bool], bool]]:
    """Yield the name of each case, its call, and whether it is one of the quick ones."""
    for family, made, quick in (
        ("space", {name: partial(scan, spec) for name, spec in SPACES.items()}, "128x64x128"),
        ("selective", {n: partial(scan_selectively, s) for n, s in SELECTIVES.items()}, "8192x16"),
        ("recurrent", {n: partial(recur, spec) for n, spec in RECURRENTS.items()}, "2560"),
        ("short", {name: partial(convolve, spec) for name, spec in CONVS.items()}, "2048x3"),
    ):
        for name, call in made.items():
            for kind, tokens in (("decode", 1), ("prompt", 64)):
                yield f"{family} {kind} {name}", call(tokens), name == quick
