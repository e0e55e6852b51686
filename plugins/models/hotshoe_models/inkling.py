"""Inkling: no rotation, but logits of relative positions; short convolutions; shared experts that
the router weighs with the others.

Defaults are those of transformers' InklingTextConfig. Layers that predict further tokens are not
read. Published files, whose class sees and hears, have names of their own, and rows of gates and
ups in turn. Source of these: transformers' mapping of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, LogTemperature, Mixture
from hotshoe.layers.stacks import Parts
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults
from hotshoe_models.relative_layers import RelativeDecoder, RelativeParts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    count,
    decoder_spec,
    flag,
    layer_types,
    number,
    optional_size,
    refuse,
)

DEFAULTS = {
    "vocab_size": 201024,
    "unpadded_vocab_size": None,
    "hidden_size": 6144,
    "num_hidden_layers": 66,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 16,
    "swa_head_dim": 128,
    "sliding_window_size": 512,
    "d_rel": 16,
    "rel_extent": 1024,
    "log_scaling_n_floor": None,
    "log_scaling_alpha": 0.1,
    "local_layer_ids": None,
    "layer_types": None,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "conv_kernel_size": 4,
    "mlp_layer_types": None,
    "intermediate_size": 24576,
    "hidden_act": "silu",
    "moe_intermediate_size": 3072,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "shared_expert_sink": True,
    "route_scale": 8.0,
    "logits_mup_width_multiplier": 24.0,
    "tie_word_embeddings": False,
    # Of layers that predict further tokens, and of a norm that no router has:
    "chain_hidden_post_norm": False,
    "mtp_hidden_states_first": True,
    "mtp_local_layer_ids": None,
    "rms_norm_eps_moe_gate": 1e-6,
}
#: Keys of published files, and those of transformers.
SPELLINGS = {"sconv_kernel_size": "conv_kernel_size", "model_max_length": "max_position_embeddings"}
FULL, SLIDING = "hybrid", "hybrid_sliding"
#: Without `local_layer_ids`, each sixth layer sees all tokens.
PERIOD = 6
NAMES = WeightNames(
    embedding_norm="model.embed_tokens.embed_norm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
)
GATE_UP, DOWN = ("gate_proj", "up_proj"), ("down_proj",)
#: The class of files that transformers writes of the text part.
TEXT = "InklingForCausalLM"
#: Names that published files have, and ours, one change after the other.
PUBLISHED = (
    (r"^model\.llm\.embed_norm\.", "model.embed_tokens.embed_norm."),
    (r"^model\.llm\.embed\.", "model.embed_tokens."),
    (r"^model\.llm\.unembed\.", "lm_head."),
    (r"^model\.llm\.", "model."),
    (r"\.attn\.w([qkvr])_d[uv]\.", r".self_attn.\1_proj."),
    (r"\.attn\.wo_ud\.", ".self_attn.o_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"_sconv\.weight$", "_sconv.conv1d.weight"),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.mlp_norm\.", ".post_attention_layernorm."),
    (r"\.mlp\.gate\.bias$", ".mlp.gate.e_score_correction_bias"),
    (r"\.mlp\.w13_dn\.weight$", ".mlp.gate_up_proj"),
    (r"\.mlp\.w2_md\.", ".mlp.down_proj."),
    (r"\.(?:shared_)?w13_weight$", ".gate_up_proj"),
    (r"\.(?:shared_)?w2_weight$", ".down_proj"),
)


def build(config: ModelConfig, ctx: BuildContext) -> RelativeDecoder:
    """Build InklingForCausalLM."""
    config = with_expert_defaults(_respelled(config), DEFAULTS)
    if not flag(config, "shared_expert_sink"):
        raise refuse(config, "shared_expert_sink", "weighs shared experts with the others")
    if config.size("conv_kernel_size") < 2:
        raise refuse(config, "conv_kernel_size", "convolves over two tokens or more")
    experts, sparse = _experts(config), sparse_types(config)
    layers = tuple(
        replace(layer, mixture=experts) if sparse(i) else layer
        for i, layer in enumerate(_layers(config))
    )
    spec = decoder_spec(
        config,
        layers,
        logits_divisor=number(config, "logits_mup_width_multiplier"),
        names=NAMES,
    )
    ctx.weights.ignore([r"^(model\.)?mtp\."], "layers that predict further tokens")
    model = RelativeDecoder(spec, ctx, _parts(config))
    published = config.architecture != TEXT
    for pattern, replacement in PUBLISHED if published else ():
        ctx.weights.rename(pattern, replacement)
    for i, layer in enumerate(layers):
        block, own = f"{NAMES.layer.format(i)}mlp.", layer.mixture
        if own is not None:
            _name_shared(ctx, block, own)
        if published:
            _interleave(ctx, block, own)
    return model


def _parts(config: ModelConfig) -> RelativeParts:
    floor, kept = (
        optional_size(config, key) for key in ("log_scaling_n_floor", "unpadded_vocab_size")
    )
    if kept is not None and kept > config.size("vocab_size"):
        raise refuse(config, "unpadded_vocab_size", "has no more tokens than vocab_size")
    return RelativeParts(
        states=config.size("d_rel"),
        extent=config.size("rel_extent"),
        taps=config.size("conv_kernel_size"),
        temperature=LogTemperature(number(config, "log_scaling_alpha"), floor) if floor else None,
        kept=kept,
    )


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values: dict[str, Any] = dict(config.values)
    for key, name in SPELLINGS.items():
        if key in values:
            values.setdefault(name, values[key])
    if values.get("dense_intermediate_size") is not None:  # then the other size is the experts'
        size = values.get("intermediate_size", DEFAULTS["intermediate_size"])
        values["moe_intermediate_size"] = size
        values["intermediate_size"] = values.pop("dense_intermediate_size")
    if values.get("mlp_layer_types") is None:
        values["first_k_dense_replace"] = values.get("dense_mlp_idx", 0)
    return replace(config, values=values)


def _layers(config: ModelConfig) -> list[LayerSpec]:
    """Say how many heads each layer has, and what it sees."""
    local = config.get("local_layer_ids")
    if local is not None and not (
        isinstance(local, list) and all(type(i) is int and i >= 0 for i in local)
    ):
        raise refuse(config, "local_layer_ids", "needs a list of layer indices")

    def kind(i: int) -> str:
        slides = (i + 1) % PERIOD != 0 if local is None else i in local
        return SLIDING if slides else FULL

    heads, kv_heads = (
        config.size(f"swa_num_{part}") for part in ("attention_heads", "key_value_heads")
    )
    if heads % kv_heads:
        raise refuse(config, "swa_num_key_value_heads", f"has {heads} query heads to share them")
    sliding = LayerSpec(
        None,
        window=config.size("sliding_window_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=config.size("swa_head_dim"),
    )
    types = layer_types(config, kind, (FULL, SLIDING))
    return [sliding if name == SLIDING else LayerSpec(None) for name in types]


def _experts(config: ModelConfig) -> Mixture:
    """Describe experts, among which those that all tokens share are the last."""
    always = count(config, "n_shared_experts")
    scale = number(config, "route_scale")
    router = RouterSpec("sigmoid", renormalize=True, correction=True, scale=scale)
    routed = mixture(config, router, experts="n_routed_experts")
    return replace(
        routed,
        num_experts=routed.num_experts + always,
        top_k=routed.top_k + always,
        always=always,
    )


def _name_shared(ctx: BuildContext, block: str, experts: Mixture) -> None:
    """Say which experts the tensors of shared ones hold."""
    numbers = range(experts.num_experts - experts.always, experts.num_experts)
    for side in (*GATE_UP, *DOWN):
        parts = _matrices(block, (side,), numbers)
        ctx.weights.unstack(f"{block}shared_experts.{side}", parts)


def _interleave(ctx: BuildContext, block: str, experts: Mixture | None) -> None:
    """Say which matrices published files have row by row in one tensor, of a layer."""
    if experts is None:
        name = f"{block}gate_up_proj"
        parts: Parts = (tuple(f"{block}{side}.weight" for side in GATE_UP),)
        ctx.weights.unstack(name, parts, interleaved=True)
        return
    routed = experts.num_experts - experts.always
    for name, numbers in (
        ("experts", range(routed)),
        ("shared_experts", range(routed, experts.num_experts)),
    ):
        parts = _matrices(block, GATE_UP, numbers)
        ctx.weights.unstack(f"{block}{name}.gate_up_proj", parts, interleaved=True)


def _matrices(block: str, sides: Sequence[str], numbers: Iterable[int]) -> Parts:
    """Return the names of matrices of each of these experts."""
    return tuple(tuple(f"{block}experts.{i}.{side}.weight" for side in sides) for i in numbers)
