"""Adapters whose kernels are cross-compiled, and calls of them with tensors of a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraOp, LoraSpec, LoraTokens
from hotshoe_triton import lora

#: Stacked matrices, ranks of all sizes, and sizes that fill no tile.
ADAPTERS = {
    "qkv": LoraSpec(4096, 6144, 48, 64, "bfloat16", (4096, 1024, 1024)),
    "down rank 8": LoraSpec(14336, 4096, 8, 8, "bfloat16"),
    "o rank 64": LoraSpec(4096, 4096, 64, 8, "bfloat16"),
    "o rank 256": LoraSpec(4096, 4096, 256, 8, "float16"),
    "o float32": LoraSpec(4096, 4096, 32, 8, "float32"),
    "odd": LoraSpec(130, 37, 6, 3, "bfloat16"),
}


def adapt(tokens: int, spec: LoraSpec) -> Callable[[DeviceFacts], bool]:
    """Return a call of adapters."""

    def call(facts: DeviceFacts) -> bool:
        if not lora.supports(spec, facts).accepted:
            return False
        call_adapters(lora.Lora(spec, facts), spec, tokens, facts.device)
        return True

    return call


def call_adapters(op: LoraOp, spec: LoraSpec, tokens: int, device: str) -> None:
    """Call it with so many tokens of a device."""
    number, sizes = getattr(torch, spec.dtype), (spec.in_features, spec.out_features)
    x, y = (torch.empty(tokens, size, dtype=number, device=device) for size in sizes)
    shape = spec.max_adapters, spec.rank
    a, b = (torch.empty(*shape, size, dtype=number, device=device) for size in sizes)
    counts = (tokens, tokens, spec.max_adapters + 1)
    places, order, starts = (torch.empty(n, dtype=torch.int32, device=device) for n in counts)
    op(y, x, a, b, LoraTokens(places, order, starts, ()))
