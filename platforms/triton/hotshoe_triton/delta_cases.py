"""Specifications and calls of the gated delta rule, for `cases.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, GatedDeltaOp, GatedDeltaSpec, GatedDeltaWeights
from hotshoe_triton import gated_delta

NEXT = GatedDeltaSpec(32, 16, 128, 128, 4, *["bfloat16"] * 2, "float32", 16, 1e-6)
KIMI = replace(NEXT, num_key_heads=32, decay="channel", gate="sigmoid")
DELTA = {
    "32/16x128": NEXT,
    "32/32x128 channels": replace(KIMI, checkpoints="all"),
    "8/4x64 float32": replace(
        NEXT, num_heads=8, num_key_heads=4, key_dim=64, dtype="float32", conv_dtype="float32"
    ),
}


def recur(spec: GatedDeltaSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of the gated delta rule over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not gated_delta.supports(spec, facts).accepted:
            return False
        call_deltas(gated_delta.GatedDelta(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def call_deltas(
    op: GatedDeltaOp, spec: GatedDeltaSpec, tokens: int, reqs: int, device: str
) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = "float32") -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    starts, lens, slots = (floats(n).int() for n in (reqs + 1, reqs, reqs * tokens))
    step = AttentionMetadata(reqs, starts, lens, floats(reqs, 32).int(), slots, tokens, 512)
    weights = GatedDeltaWeights(
        floats(spec.conv_size, spec.conv_width, dtype=spec.dtype),
        floats(spec.num_heads),
        floats(spec.num_decays),
        floats(spec.value_dim, dtype=spec.dtype),
    )
    conv = floats(64, spec.conv_width - 1, spec.conv_size, dtype=spec.conv_dtype)
    states = floats(64, spec.num_heads, spec.value_dim, spec.key_dim)
    projected = floats(reqs * tokens, sum(spec.sections), dtype=spec.dtype)
    op(projected, (conv, states), step, weights)
