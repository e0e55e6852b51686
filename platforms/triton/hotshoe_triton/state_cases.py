"""Specifications and calls of state-space blocks, for `cases.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, StateSpaceOp, StateSpaceSpec, StateSpaceWeights
from hotshoe_triton import state_space

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


def scan(spec: StateSpaceSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of a state-space block over `reqs` requests with `tokens` each."""

    def call(facts: DeviceFacts) -> bool:
        if not state_space.supports(spec, facts).accepted:
            return False
        call_spaces(state_space.StateSpace(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def call_spaces(
    op: StateSpaceOp, spec: StateSpaceSpec, tokens: int, reqs: int, device: str
) -> None:
    """Compute with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = "float32") -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    starts, lens, slots = (floats(n).int() for n in (reqs + 1, reqs, reqs * tokens))
    step = AttentionMetadata(reqs, starts, lens, floats(reqs, 32).int(), slots, tokens, 512)
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
