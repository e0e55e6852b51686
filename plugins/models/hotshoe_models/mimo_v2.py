"""MiMo V2: values narrower than keys, windows with sinks and more kv heads on most layers, experts
behind a sigmoid with correction and none shared.

Files as published and as transformers writes them differ; both are read. Defaults are those of
transformers' MiMoV2FlashConfig. The layer that predicts a further token has a window and no
experts; that it reads its own normed state, and its names, are those of the published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Storage
from hotshoe.layers.wrapped import WrappedFormat
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import FurtherNames, add_further
from hotshoe_models.fused_qkv import Cut, block_of, part_qkv
from hotshoe_models.mixtures import (
    DENSE,
    SPARSE,
    grouped_router,
    mixture,
    sparse_types,
    with_expert_defaults,
    with_experts,
)
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    refuse,
    with_rope,
)

DEFAULTS = {
    "vocab_size": 152576,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_routed_experts": 256,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "head_dim": 192,
    "v_head_dim": 128,
    "sliding_window": 129,
    "layer_types": None,
    "mlp_layer_types": None,
    "attention_value_scale": 0.707,
}
PARTIAL = 0.334
THETAS = {FULL: 5_000_000.0, SLIDING: 10_000.0}
#: Every so-manieth layer, and the first, attends to everything.
PATTERN = 6
#: What published files call things, and the words for 0 and 1 in their lists.
LISTS = {
    "hybrid_layer_pattern": ("layer_types", (FULL, SLIDING)),
    "moe_layer_freq": ("mlp_layer_types", (DENSE, SPARSE)),
}
#: Sizes of layers with windows that must be those of the others.
EQUAL = {
    "swa_num_attention_heads": "num_attention_heads",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
}
NAMES = WeightNames(sinks="self_attn.attention_sink_bias")
#: What says how q, k and v lie, and the one value beside "split".
LAYOUT, FUSED = "attention_projection_layout", "fused_qkv"
#: Where layers lie that predict further tokens, what is beside them, and how a list of what is not
#: quantized names them.
FURTHER_LAYER, UNQUANTIZED = "model.mtp.layers.{}.", "model.decoder."
NUMBERED = re.compile(r"^model\.mtp\.layers\.\d+\.")
FURTHER = FurtherNames(final_norm="final_layernorm", passes_normed=True)
FURTHER_COUNT = "num_nextn_predict_layers"
#: Tensors of V2.5 that texts do not need.
OTHER_PARTS = r"^(visual|audio_encoder|speech_embeddings)\."


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiMoV2FlashForCausalLM and MiMoV2ForCausalLM."""
    config = _with_rope(with_expert_defaults(_as_written(config), DEFAULTS))
    types = layer_types(config, lambda i: SLIDING if i and (i + 1) % PATTERN else FULL)
    window = config.size("sliding_window")
    plain = layer_specs(config, ctx, types, window, partial_rotary=True)
    layers = tuple(_layer(config, *pair) for pair in zip(types, plain, strict=True))
    further = _further_layer(config, ctx, window)
    # Published files have such layers, and do not say how many.
    count = config.size(FURTHER_COUNT, 1) if config.get(FURTHER_COUNT, 1) else 0
    v_head_dim, head_dim = config.size("v_head_dim"), config.size("head_dim")
    if v_head_dim > head_dim:
        raise refuse(config, "v_head_dim", f"has no more than {head_dim} channels, as keys have")
    experts = mixture(config, grouped_router(config), experts="n_routed_experts")
    ctx.weights.ignore([r"^(model\.)?mtp\."], "layers that predict further tokens")
    ctx.weights.rename(r"\.self_attn\.sinks$", ".self_attn.attention_sink_bias")
    spec = decoder_spec(
        config,
        with_experts(layers, experts, sparse_types(config)),
        qkv_bias=flag(config, "attention_bias"),
        v_head_dim=None if v_head_dim == head_dim else v_head_dim,
        value_scale=number(config, "attention_value_scale"),
        names=NAMES,
    )
    ctx.weights.ignore([OTHER_PARTS], "parts for images and sounds")
    if config.get(LAYOUT, "split") != "split":
        part_qkv(ctx, _cut(config, spec, [further] * count))
    own = replace(spec, layers=(further,), names=replace(NAMES, mlp_norm="pre_mlp_layernorm"))
    of_further = replace(ctx, format=_FurtherFormat(ctx.format))
    return add_further(DenseDecoder(spec, ctx), own, of_further, count, FURTHER, FURTHER_LAYER)


def _further_layer(config: ModelConfig, ctx: BuildContext, window: int) -> LayerSpec:
    """Describe the layer that predicts a further token."""
    [plain] = layer_specs(config, ctx, [SLIDING], window, partial_rotary=True)
    return _layer(config, SLIDING, plain)


class _FurtherFormat(WrappedFormat):
    """A format that is told of the further layer by the name that lists have for it."""

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the format's answer; None for a matrix of plain numbers, by either name."""
        listed = NUMBERED.sub(UNQUANTIZED, layer)
        kept = not self.online and super().storage(listed, shape) is None
        return None if kept else super().storage(layer, shape)


def _cut(config: ModelConfig, spec: DecoderSpec, further: Sequence[LayerSpec]) -> Cut:
    """Say how fused rows lie: for as many ranks as layers without a window have kv heads."""
    if config.get(LAYOUT) != FUSED:
        raise refuse(config, LAYOUT, f"knows {FUSED} and split")
    named = {spec.names.layer.format(i): layer for i, layer in enumerate(spec.layers)}
    rows = {}
    named |= {FURTHER_LAYER.format(i): layer for i, layer in enumerate(further)}
    for name, layer in named.items():
        heads = layer.num_kv_heads or spec.num_kv_heads
        sizes = (spec.num_heads * spec.head_dim, heads * spec.head_dim, heads * spec.value_dim)
        rows[name.removesuffix(".")] = sizes
    shares = config.size("num_key_value_heads")
    return Cut(shares, rows, block_of(config.get("quantization_config")))


def _as_written(config: ModelConfig) -> ModelConfig:
    """Return the configuration as transformers writes it.

    Raises:
        CheckpointError: A list has something else than 0 and 1.
    """
    values = dict(config.values)
    for key, (ours, words) in LISTS.items():
        listed = values.get(key)
        if listed is None or values.get(ours) is not None:
            continue
        if not isinstance(listed, list) or not all(one in (0, 1) for one in listed):
            raise refuse(config, key, "needs 0 or 1 for each layer")
        values[ours] = [words[one] for one in listed]
    for key, ours in EQUAL.items():
        if values.get(key) is not None and values[key] != values.get(ours, DEFAULTS[ours]):
            raise refuse(config, key, f"has the {ours} of its other layers there")
    if values.get("layernorm_epsilon") is not None:
        values.setdefault("rms_norm_eps", values["layernorm_epsilon"])
    if values.get("sliding_window_size") is not None:  # which counts the tokens before a query
        values["sliding_window"] = config.size("sliding_window_size") + 1
    for key in ("routed_scaling_factor", "attention_value_scale"):
        if key in values and values[key] is None:
            values[key] = 1.0
    return replace(config, values=values)


def _with_rope(config: ModelConfig) -> ModelConfig:
    """Fill in how each type of layer rotates, if the file does not say it by type."""
    keys = {FULL: "rope_theta", SLIDING: "swa_rope_theta"}
    partial = config.get("partial_rotary_factor") or PARTIAL
    ropes: dict[str, Mapping[str, Any]] = {
        kind: {
            "rope_type": "default",
            "rope_theta": config.get(key) or THETAS[kind],
            "partial_rotary_factor": partial,
        }
        for kind, key in keys.items()
    }
    return with_rope(config, ropes)


def _layer(config: ModelConfig, kind: str, layer: LayerSpec) -> LayerSpec:
    """Say what layers of a type differ in: kv heads, and sinks."""
    heads = config.size("num_key_value_heads")
    if kind == SLIDING:
        heads = config.size("swa_num_key_value_heads", 2 * heads)
    if config.size("num_attention_heads") % heads:
        raise refuse(config, "num_attention_heads", f"has {heads} kv heads in some layers")
    words = {
        FULL: ("add_full_attention_sink_bias", False),
        SLIDING: ("add_swa_attention_sink_bias", True),
    }
    key, default = words[kind]
    sinks = flag(config, key) if config.get(key) is not None else default
    return replace(layer, num_kv_heads=heads, sinks=sinks)
