"""The operations whose kernels are cross-compiled: specifications that models really have.

Each case builds an operation and calls it with tensors of the facts' device; `matrix.py` compiles
instead of launching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec
from hotshoe_triton import attention


@dataclass(frozen=True, slots=True)
class Case:
    """One operation.

    Attributes:
        call: Builds and calls it; False if its candidate refuses the device.
        quick: Whether it belongs to the subset that every test run compiles.
    """

    name: str
    call: Callable[[DeviceFacts], bool]
    quick: bool = False


def tensor(facts: DeviceFacts, *shape: int, dtype: str = "bfloat16") -> Tensor:
    """Return a tensor without values."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device=facts.device)


def attend(spec: AttentionSpec, queries: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention over `reqs` requests with `queries` each."""

    def call(facts: DeviceFacts) -> bool:
        if not attention.supports(spec, facts).accepted:
            return False
        q = tensor(facts, reqs * queries, spec.num_heads, spec.head_dim, dtype=spec.dtype)
        numel = spec.block_size * spec.num_kv_heads * spec.head_dim
        cache = tensor(facts, 2, 64, numel, dtype=spec.kv_dtype)
        ints = [tensor(facts, n, dtype="int32") for n in (reqs + 1, reqs, reqs * queries)]
        meta = AttentionMetadata(
            reqs, ints[0], ints[1], tensor(facts, reqs, 32, dtype="int32"), ints[2], queries, 512
        )
        sinks = tensor(facts, spec.num_heads, dtype="float32") if spec.sinks else None
        attention.Attention(spec, facts)(q, cache, meta, sinks)
        return True

    return call


LLAMA = AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 16, 0.088)

CASES: tuple[Case, ...] = (
    Case("attention decode 32/8x128", attend(LLAMA, 1), quick=True),
    Case("attention prefill 32/8x128", attend(LLAMA, 64, 1), quick=True),
)
