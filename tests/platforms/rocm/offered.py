"""Compiles every candidate that the platform offers, as it offers it; prints a JSON line for each.

A program of its own, since the tests' process interprets kernels: `python -m
tests.platforms.rocm.offered ARCH`. Tensors have no memory; launches compile instead.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AddNormSpec,
    AttentionMetadata,
    AttentionSpec,
    BlockIndexerSpec,
    Candidate,
    CompressedAttentionSpec,
    CompressSpec,
    EmbeddingSpec,
    GatedActivationSpec,
    GatedDeltaSpec,
    HyperConnectionSpec,
    IndexerSpec,
    LayerNormSpec,
    LinearSpec,
    LoraSpec,
    MlaAttentionSpec,
    MoeSpec,
    NormSpec,
    PackedAttentionSpec,
    QuantSpec,
    RelativeAttentionSpec,
    RotaryAndCacheSpec,
    SampleSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    SparseMlaSpec,
    StateSpaceSpec,
    TreeAttentionSpec,
    TreeNodes,
    narrow,
)
from hotshoe_rocm.candidates import offered
from hotshoe_rocm.targets import TARGETS
from hotshoe_triton.attention import LAYOUT
from hotshoe_triton.attention_cases import call_packed
from hotshoe_triton.cases import call_latents
from hotshoe_triton.delta_cases import KIMI, NEXT, call_deltas
from hotshoe_triton.device import ARCHS
from hotshoe_triton.lora_cases import call_adapters
from hotshoe_triton.matrix import Compiling
from hotshoe_triton.sparse_cases import (
    CHOICE,
    DEEPSEEK,
    ENTRIES,
    INDEX,
    MADE,
    SPARSE,
    STREAMS,
    call_blocks,
    call_compress,
    call_compressed,
    call_index,
    call_sparse,
    call_streams,
)
from hotshoe_triton.state_cases import (
    BAMBA,
    CONV,
    NEMOTRON,
    RECURRENT,
    SELECTIVE,
    call_recurrent,
    call_selective,
    call_short,
    call_spaces,
)

BF16 = "bfloat16"
ATTENTION = AttentionSpec(32, 8, 128, BF16, BF16, 32, 0.088)
ROTARY = RotaryAndCacheSpec(32, 8, 128, 128, BF16, BF16, 32, LAYOUT, qk_norm_eps=1e-6)
#: Of MiMo V2, whose values are narrower than keys.
NARROW = AttentionSpec(64, 4, 192, BF16, BF16, 32, 0.072, v_head_dim=128)
WIDE = narrow.with_room(LAYOUT)
NARROW_ROTARY = RotaryAndCacheSpec(64, 4, 192, 64, BF16, BF16, 32, WIDE, v_head_dim=128)
EIGHT = {
    kind: {
        "weight": QuantSpec(kind, "channel", online=True),
        "activation": QuantSpec(kind, "token", dynamic=True),
    }
    for kind in ("int8", "fp8_e4m3")
}
BLOCKS = (
    QuantSpec("fp8_e4m3", "block", block_shape=(128, 128), online=True),
    QuantSpec("fp8_e4m3", "group", 128, dynamic=True),
)
FLOATS = (
    QuantSpec("fp4_e2m1", "group", 32),
    QuantSpec("fp4_e2m1", "group", 32, dynamic=True),
)
#: Matrix instructions of 8-bit floats; gfx950 has one for every format of at most 8 bits.
FP8 = re.compile(r"v_(mfma|wmma)\w*(fp8_fp8|f8f6f4)")
#: What layers of Qwen3-8B, Qwen3-30B-A3B and, for latents, DeepSeek-V3 ask for, by slot.
SPECS: dict[str, list[Any]] = {
    "attention": [ATTENTION, NARROW],
    "tree_attention": [TreeAttentionSpec(ATTENTION, LAYOUT)],
    "relative_attention": [RelativeAttentionSpec(ATTENTION, 16, 1024)],
    "packed_attention": [PackedAttentionSpec(12, 12, 64, BF16, 0.125, 64, 64)],
    "mla_attention": [DEEPSEEK],
    "indexer": [INDEX],
    "block_indexer": [CHOICE],
    "sparse_mla_attention": [SPARSE],
    "compress": [MADE],
    "hyper_connection": [STREAMS],
    "compressed_attention": [ENTRIES],
    "gated_delta": [NEXT, KIMI],
    "state_space": [NEMOTRON, BAMBA],
    "selective_scan": [SELECTIVE],
    "rg_lru": [RECURRENT],
    "short_conv": [CONV],
    "rotary_and_cache": [ROTARY, NARROW_ROTARY],
    "rms_norm": [NormSpec(4096, 1e-6, BF16)],
    "add_rms_norm": [AddNormSpec(4096, 1e-6, BF16)],
    "layer_norm": [LayerNormSpec(4096, 1e-5, BF16)],
    "gated_activation": [GatedActivationSpec(12288, "silu", BF16)],
    "embedding": [EmbeddingSpec(512, 4096, BF16)],
    "lora": [LoraSpec(4096, 6144, 48, 64, BF16, (4096, 1024, 1024))],
    "sample": [SampleSpec(151_936)],
    "linear": [
        LinearSpec(4096, 6144, BF16),
        LinearSpec(4096, 8192, BF16, out_dtype="float32"),
        *(LinearSpec(4096, 6144, BF16, **quantized) for quantized in EIGHT.values()),
        LinearSpec(4096, 6144, BF16, weight=QuantSpec("int4", "channel", online=True)),
        LinearSpec(4096, 6144, BF16, weight=BLOCKS[0], activation=BLOCKS[1]),
        LinearSpec(4096, 6144, BF16, weight=FLOATS[0], activation=FLOATS[1]),
    ],
    "moe": [MoeSpec(LinearSpec(2048, 1536, BF16), LinearSpec(768, 2048, BF16), 128, 8, "silu")],
}


def tensor(*shape: int, dtype: str = BF16) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def ints(*shape: int) -> Tensor:
    return tensor(*shape, dtype="int32")


def attend(op: Any, spec: AttentionSpec, *more: Any, states: int = 0) -> None:
    cache = tensor(2, 64, spec.block_size * spec.num_kv_heads * spec.head_dim)
    for queries in (1, 64):
        metadata = AttentionMetadata(8, ints(9), ints(8), ints(8, 16), ints(8), queries, 512)
        q = tensor(8 * queries, spec.num_heads, spec.head_dim + states)
        op(q, cache, metadata, *(more or [None]))


def branch(op: Any, spec: TreeAttentionSpec) -> None:
    attend(op, spec.attention, TreeNodes(ints(8), tensor(8 * 64, dtype="int64")), None)


def relate(op: Any, spec: RelativeAttentionSpec) -> None:
    profiles = tensor(spec.states, spec.extent, dtype="float32")
    attend(op, spec.attention, profiles, states=spec.states)


def run_deltas(op: Any, spec: GatedDeltaSpec) -> None:
    for tokens in (1, 64):
        call_deltas(op, spec, tokens, 8, "meta")


def run_index(op: Any, spec: IndexerSpec) -> None:
    call_index(op, spec, 2, 8, "meta")


def run_blocks(op: Any, spec: BlockIndexerSpec) -> None:
    call_blocks(op, spec, 2, 8, "meta")


def run_chosen(op: Any, spec: SparseMlaSpec) -> None:
    call_sparse(op, spec, 2, 8, "meta")


def run_spaces(op: Any, spec: StateSpaceSpec) -> None:
    for tokens in (1, 64):
        call_spaces(op, spec, tokens, 8, "meta")


def run_selective(op: Any, spec: SelectiveScanSpec) -> None:
    for tokens in (1, 64):
        call_selective(op, spec, tokens, 8, "meta")


def run_entries(op: Any, spec: CompressedAttentionSpec) -> None:
    for tokens in (1, 64):
        call_compressed(op, spec, tokens, 8, "meta")


def run_compress(op: Any, spec: CompressSpec) -> None:
    call_compress(op, spec, 2, 8, "meta")


def run_streams(op: Any, spec: HyperConnectionSpec) -> None:
    for tokens in (1, 64):
        call_streams(op, spec, tokens, 8, "meta")


def run_recurrent(op: Any, spec: Any) -> None:
    for tokens in (1, 64):
        call_recurrent(op, spec, tokens, 8, "meta")


def run_short(op: Any, spec: ShortConvSpec) -> None:
    for tokens in (1, 64):
        call_short(op, spec, tokens, 8, "meta")


def run_latents(op: Any, spec: MlaAttentionSpec) -> None:
    for queries in (1, 64):
        call_latents(op, spec, queries, 8, "meta")


def rotate(op: Any, spec: RotaryAndCacheSpec) -> None:
    values = spec.num_kv_heads * spec.value_dim
    qkv = tensor(8, (spec.num_heads + spec.num_kv_heads) * spec.head_dim + values)
    cache = tensor(2, 64, spec.block_size * spec.num_kv_heads * spec.head_dim)
    norms = None
    if spec.qk_norm_eps is not None:
        norms = tensor(spec.head_dim), tensor(spec.head_dim)
    op(qkv, ints(8), tensor(64, spec.rotary_dim, dtype="float32"), cache, ints(8), norms)


def multiply(op: Any, spec: LinearSpec) -> None:
    scale = tensor(spec.out_features, spec.in_features // 32)
    stored = {"weight_scale": [scale]} if spec.weight == FLOATS[0] else {}
    op.load({"weight": [tensor(spec.out_features, spec.in_features)], **stored})
    for rows in (1, 8, 64):
        op(tensor(rows, spec.in_features))


def adapt(op: Any, spec: LoraSpec) -> None:
    for tokens in (1, 64, 2048):
        call_adapters(op, spec, tokens, "meta")


def sample(op: Any, spec: SampleSpec) -> None:
    kinds = ("float32", "int32", "float32", "float32", "float64")
    op(tensor(8, spec.vocab_size, dtype="float32"), *(tensor(8, dtype=kind) for kind in kinds))


def add_and_norm(op: Any, spec: AddNormSpec) -> None:
    x = tensor(8, spec.hidden_size)
    op(x, x, tensor(spec.hidden_size))


def mix(op: Any, spec: MoeSpec) -> None:
    sizes = [(side.out_features, side.in_features) for side in (spec.gate_up, spec.down)]
    op.load_gate_up(0, {"weight": [tensor(*sizes[0])]})
    op.load_down(0, {"weight": [tensor(*sizes[1])]})
    for tokens in (1, 32, 8192):
        logits = tensor(tokens, spec.num_experts, dtype="float32")
        op(tensor(tokens, sizes[0][1]), logits, None)


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "attention": attend,
    "tree_attention": branch,
    "relative_attention": relate,
    "packed_attention": lambda op, spec: call_packed(op, spec, "meta"),
    "mla_attention": run_latents,
    "indexer": run_index,
    "block_indexer": run_blocks,
    "sparse_mla_attention": run_chosen,
    "compress": run_compress,
    "hyper_connection": run_streams,
    "compressed_attention": run_entries,
    "gated_delta": run_deltas,
    "state_space": run_spaces,
    "selective_scan": run_selective,
    "rg_lru": run_recurrent,
    "short_conv": run_short,
    "rotary_and_cache": rotate,
    "rms_norm": lambda op, spec: op(tensor(8, spec.hidden_size), tensor(spec.hidden_size)),
    "add_rms_norm": add_and_norm,
    "layer_norm": lambda op, spec: op(tensor(8, 4096), tensor(4096), tensor(4096)),
    "gated_activation": lambda op, spec: op(tensor(8, 2 * spec.size)),
    "embedding": lambda op, spec: op(ints(8), tensor(512, spec.size)),
    "lora": adapt,
    "sample": sample,
    "linear": multiply,
    "moe": mix,
}


def compiled(candidate: Candidate, facts: DeviceFacts) -> Iterator[dict[str, Any]]:
    """Build and call a candidate for each specification; tell what its kernels take."""
    arch = ARCHS[facts.arch]
    for i, spec in enumerate(SPECS.get(candidate.slot, [])):
        row: dict[str, Any] = {"slot": candidate.slot, "name": candidate.name, "spec": i}
        verdict = candidate.supports(spec, facts)
        if not verdict.accepted:
            yield row | {"refused": verdict.reason}
            continue
        with Compiling(arch) as compiling:
            CALLS[candidate.slot](candidate.build(spec, facts), spec)
        kernels = compiling.compiled
        yield row | {
            "kernels": sorted({name for name, _ in kernels}),
            "shared": max(kernel.metadata.shared for _, kernel in kernels),
            "warp": {kernel.metadata.warp_size for _, kernel in kernels}.pop(),
            "target": {str(kernel.metadata.arch) for _, kernel in kernels}.pop(),
            "fp8": any(FP8.search(kernel.asm["amdgcn"]) for _, kernel in kernels),
        }


def main() -> None:
    [target] = [t for t in TARGETS if t.facts.arch == sys.argv[1]]
    for candidate in offered():
        for row in compiled(candidate, replace(target.facts, device="meta")):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
