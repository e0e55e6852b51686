"""The operations whose kernels are cross-compiled: specifications that models have.

Each case builds an operation and calls it with tensors of the facts' device; `matrix.py` compiles
instead of launching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AddNormSpec,
    AttentionMetadata,
    EmbeddingSpec,
    GatedActivationSpec,
    LayerNormSpec,
    LinearSpec,
    MlaAttentionOp,
    MlaAttentionSpec,
    NormSpec,
    QuantSpec,
    RotaryAndCacheSpec,
    SampleSpec,
)
from hotshoe_triton import (
    activation,
    blocks,
    embedding,
    fp4,
    groups,
    invariant,
    latent,
    layer_norm,
    linear,
    norm,
    rotary,
    sampling,
    tuned,
)
from hotshoe_triton.attention_cases import LAYOUT, calls_of_attention, kv_cache, tensor
from hotshoe_triton.delta_cases import DELTA, recur
from hotshoe_triton.lora_cases import ADAPTERS, adapt
from hotshoe_triton.moe_cases import FLOATS, MOE, OSS, QWEN, mix, quantized
from hotshoe_triton.quantize import GROUP, INT8, QuantizeRows, format_of
from hotshoe_triton.sparse_cases import LATENT, ROW_CALLS, row_cache
from hotshoe_triton.state_cases import blocks_with_states

#: Of products with stored weights, by the form of x.
MODULES = {"": groups, "fp8_e4m3": blocks, "fp4_e2m1": fp4}
Build = Callable[[LinearSpec, DeviceFacts], linear.Linear]


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


def attend_latents(
    spec: MlaAttentionSpec, queries: int, reqs: int = 8
) -> Callable[[DeviceFacts], bool]:
    """Return calls of latent attention's write and its read, over `reqs` requests."""

    def call(facts: DeviceFacts) -> bool:
        if not latent.supports(spec, facts).accepted:
            return False
        call_latents(latent.MlaAttention(spec, facts), spec, queries, reqs, facts.device)
        return True

    return call


def call_latents(
    op: MlaAttentionOp, spec: MlaAttentionSpec, queries: int, reqs: int, device: str
) -> None:
    """Write and read with tensors of a device, `queries` tokens of each request."""
    tokens, kind = reqs * queries, getattr(torch, spec.dtype)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=kind, device=device)

    op.load(floats(spec.num_heads, spec.nope_dim + spec.v_dim, spec.latent_dim))
    q = floats(tokens, spec.num_heads, spec.nope_dim + spec.rope_dim)
    rows = floats(tokens, spec.latent_dim), floats(tokens, spec.rope_dim)
    cache = row_cache(64, spec, device)
    op.write(q, *rows, ints(tokens), floats(512, spec.rope_dim).float(), cache, ints(tokens))
    lengths, table = (ints(reqs + 1), ints(reqs)), ints(reqs, 32)
    op(q, cache, AttentionMetadata(reqs, *lengths, table, ints(tokens), queries, 512))


def multiply(
    rows: int,
    n: int,
    k: int,
    format: str = "",
    build: Build = linear.Linear,
    dtype: str = "bfloat16",
    out_dtype: str | None = None,
) -> Callable[[DeviceFacts], bool]:
    """Return a call of a product."""
    spec = LinearSpec(k, n, dtype, bias=False, out_dtype=out_dtype)
    if format:
        spec = replace(
            spec,
            weight=QuantSpec(format, "channel", online=True),
            activation=QuantSpec(format, "token", dynamic=True),
        )

    def call(facts: DeviceFacts) -> bool:
        if not linear.supports(spec, facts).accepted:
            return False
        operation = build(spec, facts)
        operation.load({"weight": [tensor(facts, n, k, dtype=dtype)]})
        operation(tensor(facts, rows, k, dtype=dtype))
        return True

    return call


def multiply_stored(
    rows: int, n: int, k: int, weight: QuantSpec, activation: QuantSpec | None = None
) -> Callable[[DeviceFacts], bool]:
    """Return a call of a product with a weight as a checkpoint has it, scales by group or block."""
    spec = LinearSpec(k, n, "bfloat16", weight=weight, activation=activation)
    module = MODULES[activation.format if activation else ""]
    height, width = weight.block_shape or (1, weight.group_size or k)

    def call(facts: DeviceFacts) -> bool:
        if not module.supports(spec, facts).accepted:
            return False
        kind = "float8_e4m3fn" if module is blocks else "int8"
        scales = -(-n // height), k // width
        tensors = {
            "weight": [tensor(facts, n, k, dtype=kind)],
            "weight_scale": [tensor(facts, *scales)],
            "weight_zero_point": [tensor(facts, *scales, dtype=kind)],
            "weight_global_scale": [tensor(facts, 1, dtype="float32")],
        }
        operation = module.Linear(spec, facts)
        operation.load(tensors)
        operation(tensor(facts, rows, k))
        return True

    return call


def tuned_cases(path: Path, operation: Callable[..., linear.Linear]) -> tuple[Case, ...]:
    """Return a case of an operation for each configuration of kernels in a platform's file."""
    found = []
    for key, entry in tuned.read(path).items():
        config = tuned.config_of(entry)
        if config.is_ours:
            kind, shape, rows = key.split("/")
            n, k = map(int, shape.split("x"))
            build = partial(operation, table={(n, k, int(rows)): config})
            stored = "" if kind == "bfloat16" else kind
            found.append(Case(f"tuned {key}", multiply(int(rows), n, k, stored, build)))
    return tuple(found)


def rotate(spec: RotaryAndCacheSpec) -> Callable[[DeviceFacts], bool]:
    """Return a call of rotation and cache write."""

    def call(facts: DeviceFacts) -> bool:
        if not rotary.supports(spec, facts).accepted:
            return False
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        ints = tensor(facts, 8, dtype="int32")
        table = tensor(facts, 64, spec.rotary_dim, dtype="float32") if spec.rotary_dim else None
        norms = None
        if spec.qk_norm_eps is not None:
            norms = (tensor(facts, spec.head_dim), tensor(facts, spec.head_dim))
        operation = rotary.RotaryAndCache(spec, facts)
        cache = kv_cache(facts, spec)
        operation(tensor(facts, 8, width), ints, table, cache, ints, norms)
        return True

    return call


def normalize(size: int, quantized: bool = False) -> Callable[[DeviceFacts], bool]:
    """Return calls of both RMS norms, and of layer norm, which quantizes nothing."""

    def call(facts: DeviceFacts) -> bool:
        x, weight = tensor(facts, 8, size), tensor(facts, size)
        spec, add = NormSpec(size, 1e-5, "bfloat16"), AddNormSpec(size, 1e-5, "bfloat16")
        formats = (INT8, format_of("fp8_e4m3", facts)) if quantized else ()
        for stored, group in product(filter(None, formats), (0, GROUP)):
            norm.NormQuant(spec, stored, facts, group)(x, weight)
            norm.AddNormQuant(add, stored, facts, group)(x, x, weight)
        if not quantized:
            norm.Norm(spec, facts)(x, weight)
            norm.AddNorm(add, facts)(x, x, weight)
            for bias in (None, weight):
                spec = LayerNormSpec(size, 1e-5, "bfloat16", bias is not None)
                layer_norm.LayerNorm(spec, facts)(x, weight, bias)
        return True

    return call


def gate(size: int, kind: str, quantized: bool = False) -> Callable[[DeviceFacts], bool]:
    """Return calls of a gated activation."""

    def call(facts: DeviceFacts) -> bool:
        spec, x = GatedActivationSpec(size, kind, "bfloat16"), tensor(facts, 8, 2 * size)
        formats = (INT8, format_of("fp8_e4m3", facts)) if quantized else ()
        for stored in filter(None, formats):
            activation.GatedActivationQuant(spec, stored, facts)(x)
            activation.GatedActivationGroups(spec, stored, facts, GROUP)(x)
            QuantizeRows(size, stored, facts)(x[:, :size])
        if not quantized:
            activation.GatedActivation(spec, facts)(x)
        return True

    return call


def embed(facts: DeviceFacts) -> bool:
    """Call an embedding, with and without a scale."""
    ids, table = tensor(facts, 8, dtype="int32"), tensor(facts, 512, 4096)
    for scale in (1.0, 64.0):
        embedding.Embedding(EmbeddingSpec(512, 4096, "bfloat16", scale), facts)(ids, table)
    return True


def sample(size: int) -> Callable[[DeviceFacts], bool]:
    """Return a call of the sampler."""

    def call(facts: DeviceFacts) -> bool:
        kinds = ("float32", "int32", "float32", "float32", "float64")
        logits = tensor(facts, 8, size, dtype="float32")
        columns = (tensor(facts, 8, dtype=kind) for kind in kinds)
        sampling.Sample(SampleSpec(size), facts)(logits, *columns)
        return True

    return call


ROTATION = RotaryAndCacheSpec(32, 8, 128, 128, "bfloat16", "bfloat16", 16, LAYOUT)

#: Writers of caches of 8 bits.
SMALL_CACHES = {
    name: replace(ROTATION, kv_dtype=kind, kv_scales=scales)
    for name, kind, scales in (
        ("int8 cache", "int8", "token"),
        ("e4m3 cache", "float8_e4m3fn", "token"),
        ("e5m2 cache", "float8_e5m2", "none"),
    )
}
ENDS = (("128", 1), ("512", 1))
LINEAR = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}

#: Packed numbers, by name: of GPTQ and compressed-tensors, AWQ, eight bits, a row, NVFP4, Q6_K.
PACKED = {
    "int4 groups": QuantSpec("int4", "group", 128),
    "int4 groups zero points": QuantSpec("int4", "group", 128, symmetric=False),
    "int8 groups": QuantSpec("int8", "group", 128),
    "int4 rows": QuantSpec("int4", "channel"),
    "fp4 bytes": QuantSpec("fp4_e2m1", "group", 16),
    "int8 strips": QuantSpec("int8", "group", 16, bits=6),
}
#: Experts' forms: of gpt-oss, NVFP4, compressed-tensors, AWQ, a row of eight bits, 8-bit floats.
EXPERTS = {
    "fp4": (OSS, QuantSpec("fp4_e2m1", "group", 32)),
    "fp4 bytes": (QWEN, PACKED["fp4 bytes"]),
    **{name: (QWEN, PACKED[f"int4 groups{name[4:]}"]) for name in ("int4", "int4 zero points")},
    "int8": (QWEN, QuantSpec("int8", "channel")),
    "8-bit floats": (QWEN, blocks.WEIGHT),
}
BLOCKS = blocks.WEIGHT, QuantSpec("fp8_e4m3", "group", blocks.WIDTH, dynamic=True)
CASES: tuple[Case, ...] = (
    *(Case(*row) for row in calls_of_attention()),
    *(
        Case(f"delta {kind} {name}", recur(spec, tokens), (kind, name) == ("decode", "32/16x128"))
        for name, spec in DELTA.items()
        for kind, tokens in (("decode", 1), ("prompt", 64))
    ),
    *(Case(*row) for row in blocks_with_states()),
    *(
        Case(f"{kind} {name} {tokens}", call(spec, tokens), (name[-3:], tokens) in ENDS)
        for kind, call, specs in ROW_CALLS
        for name, spec in specs.items()
        for tokens in (1, 64)
    ),
    *(
        Case(
            f"latent {kind} {name}",
            attend_latents(spec, queries, reqs),
            (kind, name) == ("mixed", "128x512"),
        )
        for name, spec in LATENT.items()
        for kind, queries, reqs in (("decode", 1, 8), ("mixed", 2, 8))
    ),
    *(
        Case(
            f"linear {name} {rows} {stored}".strip(),
            multiply(rows, n, k, stored),
            (name, rows) == ("o", 8),
        )
        for name, (n, k) in LINEAR.items()
        for rows in (1, 8, 32, 64)
        for stored in ("", "int8", "fp8_e4m3")
    ),
    *(
        Case(f"linear one tile {stored}".strip(), multiply(8, 4096, 4096, stored, invariant.Linear))
        for stored in ("", "int8", "fp8_e4m3")
    ),
    *(
        Case(f"linear {rows} {dtype}", multiply(rows, 4096, 4096, dtype=dtype))
        for rows in (1, 8, 64)
        for dtype in ("float16", "float32")
    ),
    *(
        Case(f"linear head {rows}", multiply(rows, 128256, 4096, out_dtype="float32"))
        for rows in (1, 8, 64)
    ),
    *(
        Case(f"linear many {stored}", multiply(512, 4096, 4096, stored), True)
        for stored in ("int8", "fp8_e4m3")
    ),
    *(
        Case(f"linear {name} {rows}", multiply_stored(rows, 4096, 4096, weight), rows == 1)
        for name, weight in PACKED.items()
        for rows in (1, 32, 64, 128, 129)
    ),
    *(
        Case(f"linear fp8 blocks {rows}", multiply_stored(rows, 4096, 4096, *BLOCKS), rows == 1)
        for rows in (1, 32, 64, 512)
    ),
    *(
        Case(f"linear {name} {rows}", multiply_stored(rows, 4096, 4096, *pair))
        for name, pair in fp4.FORMS.items()
        for rows in (1, 32, 64, 512)
    ),
    Case("linear one row", multiply(1, 4096, 4096), True),
    *(
        Case(f"moe {name} {tokens}", mix(tokens, spec), name == "128x8")
        for name, spec in MOE.items()
        for tokens in (1, 32, 256, 8192)
    ),
    *(
        Case(f"moe packed {name} {tokens}", mix(tokens, quantized(spec, quant)), tokens == 1)
        for name, (spec, quant) in EXPERTS.items()
        for tokens in (1, 64, 256, 8192)
    ),
    *(
        Case(f"moe {name} {tokens}", mix(tokens, spec))
        for name, spec in FLOATS.items()
        for tokens in (1, 64, 256, 8192)
    ),
    *(Case(f"moe adapted {tokens}", mix(tokens, QWEN, True)) for tokens in (1, 256)),
    *(
        Case(f"lora {name} {tokens}", adapt(tokens, spec), name == "qkv")
        for name, spec in ADAPTERS.items()
        for tokens in (1, 64, 2048)
    ),
    Case("rotary", rotate(ROTATION), True),
    Case("rotary interleaved norm", rotate(replace(ROTATION, interleaved=True, qk_norm_eps=1e-6))),
    *(Case(f"rotary {name}", rotate(spec), "int8" in name) for name, spec in SMALL_CACHES.items()),
    Case("rotary partial", rotate(replace(ROTATION, head_dim=80, rotary_dim=32))),
    Case("rotary none", rotate(replace(ROTATION, rotary_dim=0))),
    Case("norm 4096", normalize(4096), True),
    Case("norm 5120", normalize(5120)),
    Case("norm quantized 4096", normalize(4096, True), True),
    Case("gated silu", gate(14336, "silu"), True),
    Case("gated silu of one column", gate(1, "silu"), True),
    Case("gated gelu", gate(14336, "gelu")),
    Case("gated gelu_tanh", gate(14336, "gelu_tanh")),
    Case("gated silu quantized", gate(14336, "silu", True), True),
    Case("embedding", embed, True),
    Case("sample 128256", sample(128256), True),
    Case("sample 1000", sample(1000)),
)
