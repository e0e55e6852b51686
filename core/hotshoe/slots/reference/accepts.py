"""What core's references compute: every field of a specification is judged here. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from hotshoe.platform import DeviceFacts
from hotshoe.slots.block_choice import BlockIndexerSpec
from hotshoe.slots.compressed import CompressedAttentionSpec, CompressSpec
from hotshoe.slots.hyper import HyperConnectionSpec
from hotshoe.slots.layer_specs import DecoderLayerSpec, ModelStepSpec
from hotshoe.slots.packed import PackedAttentionSpec
from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.relative import RelativeAttentionSpec
from hotshoe.slots.specs import (
    AttentionSpec,
    GatedMlpSpec,
    IndexerSpec,
    LinearSpec,
    MlaAttentionSpec,
    MoeSpec,
    RotaryAndCacheSpec,
    RouterSpec,
    SparseMlaSpec,
)
from hotshoe.slots.state_specs import (
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from hotshoe.slots.trees import TreeAttentionSpec
from hotshoe.slots.verdict import Verdict, accept, refuse
from hotshoe.types.cache import QUANTIZED

#: Element types of activations, and of a KV cache that is not quantized.
TYPES = ("float32", "bfloat16", "float16")
_TYPE_FIELDS = ("dtype", "out_dtype", "conv_dtype", "state_dtype")
KV_SCALES = ("none", "tensor", "token")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
#: Where others are known than those of gates.
OTHER_ACTIVATIONS: Mapping[type, tuple[str, ...]] = {
    MoeSpec: (*ACTIVATIONS, "relu2"),
    StateSpaceSpec: ("silu", "identity"),
}
SCORINGS = ("softmax", "sigmoid", "sparsemixer", "sqrtsoftplus")
GROUP_SCORES = ("max", "top2")
#: Formats that weights are held in, an element of storage each.
WEIGHT_FORMATS = ("int8", "int4", "fp8_e4m3", "fp4_e2m1")
#: Activations in 4-bit floats: those of NVFP4 and of MXFP4.
FLOAT_ROWS = tuple(QuantSpec("fp4_e2m1", "group", size, dynamic=True) for size in (16, 32))
#: Another format that activations may be quantized to beside a weight's own.
BESIDE = {"int4": "int8"}
#: Formats that activations are quantized to besides.
ROW_FORMATS = ("int8", "fp8_e4m3")
CHECKPOINTS = ("none", "align", "all")
#: Where a state-space block norms its result.
NORMS = ("none", "after", "before")
#: What of a gated-delta block has a decay of its own, and the activation of its gate.
DECAYS = ("head", "channel")
GATES = ("silu", "sigmoid")
GRANULARITIES = ("tensor", "channel", "group", "block")


def supports(spec: Any, facts: DeviceFacts) -> Verdict:
    """Accept with score 0 exactly what the references compute."""
    reason = next(_reasons(spec), "")
    return refuse(f"the reference {reason}") if reason else accept(0)


def _reasons(spec: Any) -> Iterator[str]:
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name in _TYPE_FIELDS and value not in (*TYPES, None):
            yield f"computes in {', '.join(TYPES)}, not in {field.name} {value}"
        known = OTHER_ACTIVATIONS.get(type(spec), ACTIVATIONS)
        if field.name == "activation" and isinstance(value, str) and value not in known:
            yield f"knows the activations {', '.join(known)}, not {value}"
        if field.name == "quant" and value is not None:
            if not value.dynamic or value.format == "fp4_e2m1":
                yield "quantizes results to 8 bits with scales that are computed as they come"
            yield from _activation(value)
    if type(spec) in _OWN_REASONS:
        yield from _OWN_REASONS[type(spec)](spec)
    if isinstance(spec, GatedMlpSpec | MoeSpec):
        for part in (spec.gate_up, spec.down):
            yield from _reasons(part)
    if isinstance(spec, MoeSpec):
        yield from _experts(spec)
        yield from _router(spec.router, spec.num_experts, spec.top_k)
    if isinstance(spec, GatedMlpSpec) and spec.gate_up.out_features != 2 * spec.down.in_features:
        yield "needs twice as many outputs of gate_up as inputs of down"


def _keys_and_values(spec: AttentionSpec | RotaryAndCacheSpec) -> Iterator[str]:
    eight_bits = spec.kv_dtype in QUANTIZED.values()
    if spec.kv_dtype not in TYPES and not eight_bits:
        known = (*TYPES, *QUANTIZED.values())
        yield f"keeps keys and values in {', '.join(known)}, not in kv_dtype {spec.kv_dtype}"
    if spec.kv_scales not in KV_SCALES:
        yield f"knows the kv_scales {', '.join(KV_SCALES)}, not {spec.kv_scales}"
    if spec.kv_scales != "none" and not eight_bits:
        yield f"scales keys and values of 8 bits alone, not of kv_dtype {spec.kv_dtype}"
    if spec.kv_dtype == "int8" and spec.kv_scales == "none":
        yield "needs kv_scales for the kv_dtype int8"
    alibi = spec.alibi if isinstance(spec, AttentionSpec) else None
    if alibi is not None and not 0 <= alibi.first <= alibi.heads - spec.num_heads:
        yield f"has slopes of {alibi.heads} heads, not of {spec.num_heads} from {alibi.first} on"
    if not 0 < spec.value_dim <= spec.head_dim:
        yield f"has values of 1 to {spec.head_dim} channels, as keys have, not {spec.v_head_dim}"
    if eight_bits and spec.v_head_dim is not None:
        yield f"keeps values narrower than keys in {', '.join(TYPES)} alone, not in {spec.kv_dtype}"
    numbers = spec.block_size * spec.num_kv_heads * spec.head_dim
    if spec.kv_scales == "token" and numbers % 4:
        yield (
            f"has scales behind a number of keys that 4 divides, not behind {numbers}; "
            "use a block_size that 4 divides"
        )


def _packed(spec: PackedAttentionSpec) -> Iterator[str]:
    if spec.num_kv_heads < 1 or spec.num_heads % spec.num_kv_heads:
        yield f"has heads for each KV head, not {spec.num_heads} for {spec.num_kv_heads}"
    if not 0 <= spec.rotary_dim <= spec.head_dim or spec.rotary_dim % 2:
        yield f"rotates an even number of {spec.head_dim} channels, not {spec.rotary_dim}"
    if spec.window is not None and spec.window < 0:
        yield f"has windows of at least 0 tokens on each side, not {spec.window}"
    if spec.bias_span is not None and not 0 <= spec.bias_span < 2**20:
        yield f"has a bias for distances of 0 to 2^20 tokens, not of up to {spec.bias_span}"


def _trees(spec: TreeAttentionSpec) -> Iterator[str]:
    attention = spec.attention
    if attention.window is not None or attention.alibi is not None:
        yield "counts no distances in trees, as window and alibi do"
    if attention.kv_scales == "tensor":
        yield "knows no scales of a checkpoint in trees"
    yield from _reasons(attention)


def _relative(spec: RelativeAttentionSpec) -> Iterator[str]:
    own = spec.attention
    if own.softcap is not None or own.sinks or own.alibi is not None:
        yield "has neither caps, sinks nor slopes beside logits of relative positions"
    if spec.states < 1 or spec.extent < 1:
        yield f"needs states and distances, not {spec.states} and {spec.extent}"
    yield from _reasons(own)


def _latents(spec: MlaAttentionSpec | IndexerSpec | BlockIndexerSpec) -> Iterator[str]:
    known = (*TYPES, *QUANTIZED.values())
    if spec.kv_dtype not in known:
        yield f"keeps rows in {', '.join(known)}, not in {spec.kv_dtype}; use --kv-cache-dtype auto"
    elif spec.row.refusal:
        yield spec.row.refusal


def _layer(spec: DecoderLayerSpec) -> Iterator[str]:
    attention = spec.attention
    for part in (spec.qkv, attention, spec.o, spec.mlp):
        yield from _reasons(part)
    if attention.kv_scales == "tensor":
        yield "has scales by token in a whole layer, none from the checkpoint"
    keys = (attention.num_heads + attention.num_kv_heads) * attention.head_dim
    if spec.qkv.out_features != keys + attention.num_kv_heads * attention.value_dim:
        yield "needs as many outputs of qkv as heads have channels"
    if spec.o.in_features != attention.num_heads * attention.value_dim:
        yield "needs as many inputs of o as heads have values"
    sizes = {spec.o.out_features, spec.mlp.gate_up.in_features, spec.mlp.down.out_features}
    if sizes != {spec.hidden_size}:
        yield "needs as many outputs as inputs of a layer"


def _step(spec: ModelStepSpec) -> Iterator[str]:
    for layer, _ in spec.layers:
        yield from _layer(layer)
    if len({(layer.hidden_size, layer.dtype) for layer, _ in spec.layers}) != 1:
        yield "needs layers of one size and type"


def _sparse(spec: SparseMlaSpec) -> Iterator[str]:
    yield from _reasons(spec.attention)
    if spec.top_k < 1:
        yield f"attends to at least one token, not to {spec.top_k}"


def _index(spec: IndexerSpec | BlockIndexerSpec) -> Iterator[str]:
    yield from _latents(spec)
    if spec.top_k < 1:
        yield f"chooses at least one token, not {spec.top_k}"
    if not 0 <= spec.rope_dim <= spec.head_dim or spec.rope_dim % 2:
        yield f"rotates an even number of {spec.head_dim} channels, not {spec.rope_dim}"


def _blocks(spec: BlockIndexerSpec) -> Iterator[str]:
    yield from _index(spec)
    if spec.group < 1 or spec.group % spec.block_size:
        yield f"has blocks of {spec.group} tokens; use a --block-size that divides that"
    if not 1 <= spec.local <= spec.top_k:
        yield f"chooses 1 to {spec.top_k} blocks whatever they score, not {spec.local}"


def _entries(spec: CompressSpec | CompressedAttentionSpec) -> Iterator[str]:
    if spec.kv_dtype not in TYPES:
        yield f"keeps rows in {', '.join(TYPES)}, not in {spec.kv_dtype}; use --kv-cache-dtype auto"
    group, size = spec.group, spec.block_size
    if group is not None and size % group and group % size:
        yield f"has groups of {group} tokens; use a --block-size that divides that, or a multiple"
    if not 0 <= spec.rope_dim <= spec.head_dim or spec.rope_dim % 2:
        yield f"rotates an even number of {spec.head_dim} channels, not {spec.rope_dim}"


def _streams(spec: HyperConnectionSpec) -> Iterator[str]:
    if spec.count < 1 or spec.iterations < 1:
        yield f"mixes streams at least once, not {spec.count} of them {spec.iterations} times"


def _experts(spec: MoeSpec) -> Iterator[str]:
    if spec.gate_up.out_features != (1 + spec.gated) * spec.down.in_features:
        times = "twice as many outputs" if spec.gated else "as many outputs"
        yield f"needs {times} of gate_up as inputs of down"
    if spec.held is not None and not spec.held >= 1:
        yield f"holds at least one expert, not {spec.held}"
    if spec.alpha != 1.0 and spec.activation != "silu":
        yield f"has an alpha for silu alone, not for {spec.activation}"


def _router(router: RouterSpec, num_experts: int, top_k: int) -> Iterator[str]:
    if router.scoring not in SCORINGS:
        yield f"knows the scorings {', '.join(SCORINGS)}, not {router.scoring}"
    if router.scoring == "sparsemixer" and (router.correction or router.groups > 1):
        yield "has neither a correction nor groups with sparsemixer"
    if router.group_score not in GROUP_SCORES:
        yield f"knows the group scores {', '.join(GROUP_SCORES)}, not {router.group_score}"
    if router.groups < 1 or num_experts % router.groups:
        yield f"needs groups of equal size, not {router.groups} of {num_experts} experts"
        return
    size, kept = num_experts // router.groups, router.groups_kept
    if not 1 <= kept <= router.groups:
        yield f"keeps 1 to {router.groups} groups, not {kept}"
    elif not 1 <= top_k <= kept * size:
        yield f"chooses 1 to {kept * size} experts, not {top_k}"
    if router.groups > 1 and router.group_score == "top2" and size < 2:
        yield "needs two experts in a group for the group score top2"


def _states(
    spec: StateSpaceSpec | SelectiveScanSpec | RgLruSpec | ShortConvSpec | GatedDeltaSpec,
) -> Iterator[str]:
    if spec.checkpoints not in CHECKPOINTS:
        yield f"knows the checkpoints {', '.join(CHECKPOINTS)}, not {spec.checkpoints}"
    if spec.conv_width < 2:
        yield f"needs a conv_width of at least 2, not {spec.conv_width}"


def _rg_lru(spec: RgLruSpec) -> Iterator[str]:
    yield from _states(spec)
    if spec.inner_size % spec.num_heads:
        yield f"needs heads of equal size, not {spec.num_heads} of {spec.inner_size} channels"


def _state_space(spec: StateSpaceSpec) -> Iterator[str]:
    yield from _states(spec)
    if spec.norm not in NORMS:
        yield f"knows the norms {', '.join(NORMS)}, not {spec.norm}"
    if spec.num_heads % spec.num_groups or spec.inner_size % spec.norm_groups:
        yield "needs groups of equal size"


def _gated_delta(spec: GatedDeltaSpec) -> Iterator[str]:
    yield from _states(spec)
    if spec.decay not in DECAYS:
        yield f"knows a decay for each {', '.join(DECAYS)}, not for each {spec.decay}"
    if spec.gate not in GATES:
        yield f"knows the gates {', '.join(GATES)}, not {spec.gate}"
    if spec.decay_floor is not None and not spec.decay_floor < 0:
        yield f"needs a decay_floor below 0, not {spec.decay_floor}"
    if spec.num_heads % spec.num_key_heads:
        yield "needs the same number of heads for each key head"


def _activation(quant: QuantSpec) -> Iterator[str]:
    """Judge quantized activations: scales are computed as they come, or one comes with W."""
    if quant.format == "fp4_e2m1" and not quant.packing:
        if quant not in FLOAT_ROWS:
            yield "quantizes activations to 4-bit floats by groups of 16 or 32, as they come"
        return
    if quant.format not in ROW_FORMATS or quant.packing:
        yield f"quantizes activations to {', '.join(ROW_FORMATS)}, not to {_name(quant)}"
    by_group = quant.granularity == "group" and quant.dynamic and quant.group_size
    fixed = quant.granularity == "tensor" and not quant.dynamic
    if not (_by_token(quant) or by_group or fixed) or not quant.symmetric:
        yield (
            "quantizes activations symmetrically with a scale per token or group of a token, "
            "computed as they come, or with one scale from the checkpoint"
        )


def _by_token(quant: QuantSpec) -> bool:
    return quant.granularity == "token" and quant.dynamic


def _matrix(spec: LinearSpec) -> Iterator[str]:
    weight = spec.weight
    if weight is None:
        if spec.activation is not None:
            yield "multiplies quantized activations by quantized weights alone"
        return
    if weight.format not in WEIGHT_FORMATS or weight.packing:
        yield f"holds weights as {', '.join(WEIGHT_FORMATS)}, not as {_name(weight)}"
    yield from _scales(weight, spec.in_features)
    if spec.activation is not None:
        yield from _activation(spec.activation)
        if spec.activation.format not in (weight.format, BESIDE.get(weight.format)):
            yield "multiplies operands of one format, or int4 by int8"


def _scales(weight: QuantSpec, in_features: int) -> Iterator[str]:
    if weight.granularity not in GRANULARITIES:
        yield f"knows the granularities {', '.join(GRANULARITIES)}, not {weight.granularity}"
    if weight.dynamic:
        yield "has weights' scales from their loading, none from a step"
    size = weight.group_size
    if weight.granularity == "group" and (not size or in_features % size):
        yield f"needs a group_size that divides {in_features} inputs, not {size}"
    if weight.granularity == "block" and not weight.block_shape:
        yield "needs a block_shape with granularity block"
    if weight.format == "fp4_e2m1" and weight.online:
        yield "has fp4_e2m1 from a checkpoint alone"
    if not weight.symmetric and (weight.format.startswith("fp") or weight.online):
        yield "has zero points of integers from a checkpoint alone"


def _name(quant: QuantSpec) -> str:
    return f"{quant.format} packed as {quant.packing}" if quant.packing else quant.format


_OWN_REASONS: dict[type, Callable[[Any], Iterator[str]]] = {
    AttentionSpec: _keys_and_values,
    DecoderLayerSpec: _layer,
    RelativeAttentionSpec: _relative,
    TreeAttentionSpec: _trees,
    PackedAttentionSpec: _packed,
    ModelStepSpec: _step,
    RotaryAndCacheSpec: _keys_and_values,
    MlaAttentionSpec: _latents,
    SparseMlaSpec: _sparse,
    IndexerSpec: _index,
    BlockIndexerSpec: _blocks,
    CompressSpec: _entries,
    CompressedAttentionSpec: _entries,
    HyperConnectionSpec: _streams,
    LinearSpec: _matrix,
    StateSpaceSpec: _state_space,
    SelectiveScanSpec: _states,
    RgLruSpec: _rg_lru,
    ShortConvSpec: _states,
    GatedDeltaSpec: _gated_delta,
}
