"""Specifications and calls of attention, and caches of keys and values, for `cases.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    Alibi,
    AttentionMetadata,
    AttentionSpec,
    PackedAttentionOp,
    PackedAttentionSpec,
    RelativeAttentionSpec,
    RotaryAndCacheSpec,
    StepShape,
    TreeAttentionSpec,
    TreeNodes,
)
from hotshoe_triton import attention, kv, packed, relative, tree_attention
from hotshoe_triton.attention import LAYOUT

LLAMA = AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 16, 0.088)
GEMMA = replace(LLAMA, num_heads=16, head_dim=256, block_size=32, window=4096, softcap=50.0)
SINKS = replace(LLAMA, num_heads=64, head_dim=64, block_size=64, window=128, sinks=True)
#: head_dim and group that are no powers of two.
ODD = replace(LLAMA, num_heads=28, num_kv_heads=4, head_dim=80)
#: As in models of tests: fewer channels than a matrix product takes.
SMALL = replace(LLAMA, num_heads=4, num_kv_heads=2, head_dim=8)
EXACT = replace(LLAMA, dtype="float32", kv_dtype="float32")

ATTENTION = {
    "32/8x128": LLAMA,
    "32/8x128 pages of 64": replace(LLAMA, block_size=64),
    "32/8x128 pages of 128": replace(LLAMA, block_size=128),
    "16/8x256 window cap": GEMMA,
    "64/8x64 window sinks": SINKS,
    "28/4x80": ODD,
    "32/32x128 slopes": replace(LLAMA, num_kv_heads=32, alibi=Alibi(32)),
    "4/2x8": SMALL,
    "32/8x128 float32": EXACT,
    "32/8x128 float16": replace(LLAMA, dtype="float16", kv_dtype="float16"),
    "32/8x128 int8 cache": replace(LLAMA, kv_dtype="int8", kv_scales="token"),
    "32/8x128 e4m3 cache": replace(LLAMA, kv_dtype="float8_e4m3fn", kv_scales="token"),
    "32/8x128 e4m3 cache scaled": replace(LLAMA, kv_dtype="float8_e4m3fn", kv_scales="tensor"),
    "32/8x128 e5m2 cache": replace(LLAMA, kv_dtype="float8_e5m2"),
    "16/8x256 window cap int8 cache": replace(GEMMA, kv_dtype="int8", kv_scales="token"),
    "32/8x128 float16 int8 cache": replace(
        LLAMA, dtype="float16", kv_dtype="int8", kv_scales="token"
    ),
}
#: Where nodes of trees attend, which have no distances.
TREES = {
    name.replace(" window", ""): TreeAttentionSpec(replace(spec, window=None), LAYOUT)
    for name, spec in ATTENTION.items()
    if spec.alibi is None and spec.kv_scales != "tensor"
}
#: As Inkling has them, with and without a window.
RELATIVE = {
    "32/8x128": RelativeAttentionSpec(LLAMA, 16, 1024),
    "32/8x128 window": RelativeAttentionSpec(replace(LLAMA, window=512), 16, 1024),
    "32/8x128 float32": RelativeAttentionSpec(EXACT, 16, 1024),
}
#: Encoders: BERT, MiniLM, ModernBERT's two kinds of layers, and heads as wide as Gemma's.
BERT = PackedAttentionSpec(12, 12, 64, "bfloat16", 0.125)
PACKED = {
    "12x64": BERT,
    "12x32": replace(BERT, head_dim=32),
    "12x64 rotated": replace(BERT, rotary_dim=64),
    "12x64 rotated window": replace(BERT, rotary_dim=64, window=64),
    "3/1x256 rotated window": PackedAttentionSpec(3, 1, 256, "bfloat16", 0.0625, 256, 512),
    "12x64 biased": replace(BERT, bias_span=128),
    "12x64 limited window": replace(BERT, window=64, limited=True),
    "12x64 float32": replace(BERT, dtype="float32"),
    "12x64 float16": replace(BERT, dtype="float16"),
}


def tensor(facts: DeviceFacts, *shape: int, dtype: str = "bfloat16") -> Tensor:
    """Return a tensor without values."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device=facts.device)


def kv_cache(facts: DeviceFacts, spec: AttentionSpec | RotaryAndCacheSpec) -> Tensor:
    """Return the cache of a specification: bytes if it is quantized."""
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    if spec.kv_dtype not in kv.LIMITS:
        return tensor(facts, 2, 64, numel, dtype=spec.kv_dtype)
    scales = 4 * spec.block_size * spec.num_kv_heads * (spec.kv_scales == "token")
    return tensor(facts, 2, 64, numel + scales, dtype="uint8")


def step_of(
    facts: DeviceFacts, spec: AttentionSpec, queries: int, reqs: int, longest: int
) -> tuple[AttentionMetadata, Tensor]:
    """Return a step of `reqs` requests with `queries` tokens each, and its queries."""
    q = tensor(facts, reqs * queries, spec.num_heads, spec.head_dim, dtype=spec.dtype)
    sizes = ((reqs + 1,), (reqs,), (reqs, 32), (reqs * queries,))
    ints = [tensor(facts, *size, dtype="int32") for size in sizes]
    return AttentionMetadata(reqs, *ints, queries, longest, settled=True), q


def attend(
    spec: AttentionSpec, queries: int, reqs: int = 8, alone: bool = False
) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention over `reqs` requests with `queries` each."""

    def call(facts: DeviceFacts) -> bool:
        if not attention.supports(spec, facts).accepted:
            return False
        step, q = step_of(facts, spec, queries, reqs, 512)
        sinks = tensor(facts, spec.num_heads, dtype="float32") if spec.sinks else None
        operation = attention.Attention(spec, facts, alone)
        operation.kv_scales = tensor(facts, 2, dtype="float32")
        operation(q, kv_cache(facts, spec), step, sinks)
        return True

    return call


def branch(trees: TreeAttentionSpec, queries: int, reqs: int = 1) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention with trees, over `reqs` requests with `queries` tokens each.

    Contexts are long enough to be shared by programs.
    """

    def call(facts: DeviceFacts) -> bool:
        if not tree_attention.supports(trees, facts).accepted:
            return False
        spec = trees.attention
        step, q = step_of(facts, spec, queries, reqs, 1 << 16)
        counts, lines = tensor(facts, reqs, dtype="int32"), tensor(facts, len(q), dtype="int64")
        sinks = tensor(facts, spec.num_heads, dtype="float32") if spec.sinks else None
        operation = tree_attention.TreeAttention(trees, facts)
        operation(q, kv_cache(facts, spec), step, TreeNodes(counts, lines), sinks)
        return True

    return call


def relate(
    spec: RelativeAttentionSpec, queries: int, reqs: int = 4
) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention with logits of relative positions."""

    def call(facts: DeviceFacts) -> bool:
        if not relative.supports(spec, facts).accepted:
            return False
        own = spec.attention
        step, q = step_of(facts, own, queries, reqs, 4096)
        states = tensor(facts, *q.shape[:2], spec.states, dtype=own.dtype)
        profiles = tensor(facts, spec.states, spec.extent, dtype="float32")
        operation = relative.RelativeAttention(spec, facts)
        operation(torch.cat((q, states), -1), kv_cache(facts, own), step, profiles)
        return True

    return call


def call_packed(op: PackedAttentionOp, spec: PackedAttentionSpec, device: str) -> None:
    """Attend with tensors of a device, 64 tokens of each of 8 requests."""

    def made(*shape: int, dtype: str = "int32") -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    counts = [64] * 8
    shape = StepShape(8, made(9), made(8), 64, 64, host_lens=(counts, counts))
    table = made(512, spec.rotary_dim, dtype="float32") if spec.rotary_dim else None
    bias = None
    if spec.bias_span is not None:
        bias = made(spec.num_heads, 2 * spec.bias_span + 1, dtype="float32")
    plan = op.prepare(shape, made(8) if spec.limited else None)
    op(made(512, spec.width, dtype=spec.dtype), made(512), table, plan, bias)


def pack(spec: PackedAttentionSpec) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention without a cache."""

    def call(facts: DeviceFacts) -> bool:
        if not packed.supports(spec, facts).accepted:
            return False
        call_packed(packed.PackedAttention(spec, facts), spec, facts.device)
        return True

    return call


def calls_of_attention() -> Iterator[tuple[str, Callable[[DeviceFacts], bool], bool]]:
    """Yield the name of each case, its call, and whether it is one of the quick ones."""
    for name, spec in ATTENTION.items():
        for kind, queries, reqs in (("decode", 1, 8), ("prefill", 64, 1), ("mixed", 2, 8)):
            # A mixed step compiles both kernels.
            quick = (kind, name) == ("mixed", "32/8x128")
            yield f"attention {kind} {name}", attend(spec, queries, reqs), quick
    for reqs in attention.REQUEST_BLOCKS[1:]:
        yield f"attention decode {reqs} requests", attend(LLAMA, 1, reqs), False
    for kind, queries in (("decode", 1), ("mixed", 2)):
        yield f"attention alone {kind}", attend(LLAMA, queries, alone=True), False
    for name, trees in TREES.items():
        yield f"trees {name}", branch(trees, 65), name == "32/8x128"
    for name, related in RELATIVE.items():
        for kind, queries in (("decode", 1), ("prefill", 64)):
            yield f"relative {kind} {name}", relate(related, queries), name == "32/8x128"
    for name, encoder in PACKED.items():
        yield f"packed {name}", pack(encoder), name == "12x64 rotated window"
