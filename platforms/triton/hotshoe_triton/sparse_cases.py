"""Specifications and calls of attention to chosen rows and to entries, and of the residual streams
around it, for `cases.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    BlockIndexerOp,
    BlockIndexerSpec,
    CompressedAttentionOp,
    CompressedAttentionSpec,
    CompressOp,
    CompressSpec,
    HyperConnectionOp,
    HyperConnectionSpec,
    IndexerOp,
    IndexerSpec,
    MlaAttentionSpec,
    SparseMlaOp,
    SparseMlaSpec,
)
from hotshoe_triton import block_choice, compress, compressed, hyper, indexer, sparse

#: Of DeepSeek-V3.2.
INDEX = IndexerSpec(64, 128, 64, 2048, *["bfloat16"] * 2, 64)
DEEPSEEK = MlaAttentionSpec(128, 512, 128, 64, 128, *["bfloat16"] * 2, 64, 0.072)
SPARSE = SparseMlaSpec(DEEPSEEK, 2048)
#: Of GLM-5 Next, which rotates nothing.
GLM5_NEXT = replace(DEEPSEEK, num_heads=64, nope_dim=256, rope_dim=0, v_dim=256)
FEW = SparseMlaSpec(replace(DEEPSEEK, num_heads=16), 2048)
FP8, INT8 = {"kv_dtype": "float8_e4m3fn"}, {"kv_dtype": "int8"}
INDEXES = {
    "64x128": INDEX,
    "64x128 float32": replace(INDEX, dtype="float32", kv_dtype="float32"),
    "64x128 e4m3 cache": replace(INDEX, **FP8),
}
#: Of MiniMax M3.
CHOICE = BlockIndexerSpec(4, 128, 64, 128, 16, 1, *["bfloat16"] * 2, 64)
CHOICES = {"4x128 of 128": CHOICE, "1x128 of 128": replace(CHOICE, num_heads=1)}
SPARSES = {
    "128x512": SPARSE,
    "16x512": FEW,
    "128x512 e4m3 cache": SparseMlaSpec(replace(DEEPSEEK, **FP8), 2048),
    "64x512 not turned": SparseMlaSpec(GLM5_NEXT, 2064),
}
#: Of DeepSeek V4, by an eighth of the heads: chosen entries for 4 tokens each, all for 128.
ENTRIES = CompressedAttentionSpec(8, 512, 64, 128, 4, 512, *["bfloat16"] * 2, 64, 0.044)
COMPRESSED = {
    "8x512 of 4": ENTRIES,
    "8x512 of 128": replace(ENTRIES, group=128, top_k=None),
    "64x512 of 4": replace(ENTRIES, num_heads=64),
}
#: Its entries, and those of its indexer.
MADE = CompressSpec(512, 64, 4, True, 1e-6, *["bfloat16"] * 2, 64)
ENTRIES_MADE = {
    "512 of 4": MADE,
    "512 of 128": replace(MADE, group=128, overlap=False),
    "128 of 4": replace(MADE, head_dim=128),
    "512 of 4 float32": replace(MADE, dtype="float32", kv_dtype="float32"),
}
#: Its residual streams, between blocks and behind the last.
STREAMS = HyperConnectionSpec(4, 4096, 20, 1e-6, 1e-6, "bfloat16")
CONNECTIONS = {
    "4x4096": STREAMS,
    "4x4096 float32": replace(STREAMS, dtype="float32"),
    "4x4096 last": replace(STREAMS, ends=True),
}
#: Dense attention.
LATENT = {
    "128x512": DEEPSEEK,
    "16x512": replace(DEEPSEEK, num_heads=16),
    "20x256 pages of 16": replace(DEEPSEEK, num_heads=20, latent_dim=256, block_size=16),
    "16x512 float32": replace(DEEPSEEK, num_heads=16, dtype="float32", kv_dtype="float32"),
    "16x512 float16": replace(DEEPSEEK, num_heads=16, dtype="float16", kv_dtype="float16"),
    "128x512 e4m3 cache": replace(DEEPSEEK, **FP8),
    "16x512 e4m3 cache": replace(DEEPSEEK, num_heads=16, **FP8),
    "128x512 int8 cache": replace(DEEPSEEK, **INT8),
    "64x512 not turned": GLM5_NEXT,
}


def index(spec: IndexerSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return calls of the indexer's write and its choice, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not indexer.supports(spec, facts).accepted:
            return False
        call_index(indexer.Indexer(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def choose_blocks(
    spec: BlockIndexerSpec, tokens: int, reqs: int = 8
) -> Callable[[DeviceFacts], bool]:
    """Return calls of a choice of blocks and of its write, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not block_choice.supports(spec, facts).accepted:
            return False
        op = block_choice.BlockIndexer(spec, facts)
        call_blocks(op, spec, tokens, reqs, facts.device)
        return True

    return call


def attend_chosen(spec: SparseMlaSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention to chosen rows, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not sparse.supports(spec, facts).accepted:
            return False
        call_sparse(sparse.SparseMlaAttention(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def attend_entries(
    spec: CompressedAttentionSpec, tokens: int, reqs: int = 8
) -> Callable[[DeviceFacts], bool]:
    """Return a call of attention to windows and entries, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not compressed.supports(spec, facts).accepted:
            return False
        op, device = compressed.CompressedAttention(spec, facts), facts.device
        call_compressed(op, spec, tokens, reqs, device)
        return True

    return call


def make_entries(spec: CompressSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return a call that makes entries, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not compress.supports(spec, facts).accepted:
            return False
        call_compress(compress.Compress(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


def connect(spec: HyperConnectionSpec, tokens: int, reqs: int = 8) -> Callable[[DeviceFacts], bool]:
    """Return calls of a connection over `reqs` times so many tokens."""

    def call(facts: DeviceFacts) -> bool:
        if not hyper.supports(spec, facts).accepted:
            return False
        call_streams(hyper.HyperConnection(spec, facts), spec, tokens, reqs, facts.device)
        return True

    return call


#: What is compiled besides dense attention: the first word of names, calls, specifications.
ROW_CALLS: tuple[tuple[str, Any, Mapping[str, Any]], ...] = (
    ("index", index, INDEXES),
    ("blocks", choose_blocks, CHOICES),
    ("chosen", attend_chosen, SPARSES),
    ("entries", attend_entries, COMPRESSED),
    ("compress", make_entries, ENTRIES_MADE),
    ("streams", connect, CONNECTIONS),
)


def row_cache(
    blocks: int, spec: MlaAttentionSpec | IndexerSpec | BlockIndexerSpec, device: str
) -> Tensor:
    """Return a cache of one row for each token, without values."""
    kind = torch.uint8 if spec.row.quantized else getattr(torch, spec.kv_dtype)
    return torch.empty((blocks, spec.block_size, spec.row.width), dtype=kind, device=device)


def ints(device: str, *shape: int) -> Tensor:
    """Return integers without values."""
    return torch.empty(shape, dtype=torch.int32, device=device)


def step_of(tokens: int, reqs: int, device: str) -> AttentionMetadata:
    """Return a step of `reqs` requests with `tokens` each."""
    starts, lens, table = ints(device, reqs + 1), ints(device, reqs), ints(device, reqs, 64)
    return AttentionMetadata(reqs, starts, lens, table, ints(device, reqs * tokens), tokens, 4096)


def call_index(op: IndexerOp, spec: IndexerSpec, tokens: int, reqs: int, device: str) -> None:
    """Write and choose with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = spec.dtype) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    count, at = reqs * tokens, ints(device, reqs * tokens)
    q, key = floats(count, spec.num_heads, spec.head_dim), floats(count, spec.head_dim)
    cache = row_cache(64, spec, device)
    op.write(q, key, at, floats(512, spec.rope_dim, dtype="float32"), cache, at)
    weights = floats(count, spec.num_heads, dtype="float32")
    op(q, weights, cache, step_of(tokens, reqs, device))


def call_blocks(
    op: BlockIndexerOp, spec: BlockIndexerSpec, tokens: int, reqs: int, device: str
) -> None:
    """Write and choose with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = spec.dtype) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    count, at = reqs * tokens, ints(device, reqs * tokens)
    q, key = floats(count, spec.num_heads, spec.head_dim), floats(count, spec.head_dim)
    cache = row_cache(64, spec, device)
    op.write(q, key, at, floats(512, spec.rope_dim, dtype="float32"), cache, at)
    op(q, cache, step_of(tokens, reqs, device))


def call_sparse(op: SparseMlaOp, spec: SparseMlaSpec, tokens: int, reqs: int, device: str) -> None:
    """Attend with tensors of a device, `tokens` tokens of each request."""
    own = spec.attention

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, own.dtype), device=device)

    op.load(floats(own.num_heads, own.nope_dim + own.v_dim, own.latent_dim))
    q = floats(reqs * tokens, own.num_heads, own.nope_dim + own.rope_dim)
    cache, chosen = row_cache(64, own, device), ints(device, len(q), spec.top_k)
    op(q, cache, step_of(tokens, reqs, device), chosen)


def call_compressed(
    op: CompressedAttentionOp, spec: CompressedAttentionSpec, tokens: int, reqs: int, device: str
) -> None:
    """Attend with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = spec.dtype) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    q, step = floats(reqs * tokens, spec.num_heads, spec.head_dim), step_of(tokens, reqs, device)
    cache, held = (floats(64, rows, spec.head_dim) for rows in (spec.block_size, spec.per_block))
    chosen = None if spec.top_k is None else ints(device, len(q), spec.top_k)
    sinks, table = (floats(*n, dtype="float32") for n in ((spec.num_heads,), (512, spec.rope_dim)))
    at = step.slot_mapping
    q = op.write(q, floats(len(q), spec.head_dim), at, table, cache, at)
    op(q, cache, step, (held, step, chosen), sinks, table)


def call_compress(op: CompressOp, spec: CompressSpec, tokens: int, reqs: int, device: str) -> None:
    """Make entries with tensors of a device, `tokens` tokens of each request."""

    def floats(*shape: int, dtype: str = spec.dtype) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    step = step_of(tokens, reqs, device)
    rows = floats(64, spec.block_size, spec.token_row.width)
    entries = floats(64, spec.per_block, spec.head_dim, dtype=spec.kv_dtype)
    bias, table = (spec.group, spec.channels), (512, spec.rope_dim)
    rest = floats(spec.head_dim), floats(*table, dtype="float32")
    op.write(rows.flatten(0, 1)[: reqs * tokens], rows, step.slot_mapping)
    op(rows, entries, (step, step), floats(*bias, dtype="float32"), *rest)
    op.turn(floats(reqs * tokens, 64, spec.head_dim), step.slot_mapping, rest[1])


def call_streams(
    op: HyperConnectionOp, spec: HyperConnectionSpec, tokens: int, reqs: int, device: str
) -> None:
    """Join and mix with tensors of a device, in front of the first block and behind one."""

    def floats(*shape: int, dtype: str = "float32") -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    n, width = reqs * tokens, spec.count * spec.hidden_size
    streams = floats(n, spec.count, spec.hidden_size, dtype=spec.dtype)
    out, gates = floats(n, spec.hidden_size, dtype=spec.dtype), spec.count * (1 + spec.count)
    weights = floats(spec.outputs, width), floats(spec.outputs), floats(spec.scales)
    for block in (None, (out, floats(n, gates))):
        op(streams, block, *weights)
