"""Ernie 4.5, dense and with experts, also the text part of the model that sees: it turns pairs of
neighboring channels.

A model that sees has experts of text, and others of images, which no text needs. Defaults are those
of transformers' Ernie4_5Config, Ernie4_5_MoeConfig and Ernie4_5_VLMoeTextConfig. The layer that
predicts further tokens is that of the modeling code published with the model, in PaddlePaddle's
ERNIE.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Mixture, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import FurtherNames, ResidualDecoder, add_further
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.values import (
    count,
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    refuse,
    with_defaults,
)

SHAPE = {
    "vocab_size": 103424,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "use_bias": False,
}
DEFAULTS = {
    **SHAPE,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
MOE_DEFAULTS = {
    **SHAPE,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
SEEING_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in MOE_DEFAULTS.items() if not key.startswith("moe_layer_")},
    "moe_intermediate_size": None,
    "mlp_layer_types": None,
}
#: Channels of an expert of text, and of one of images, in files that do not say.
EXPERT_SIZES = [1536, 512]
DEFAULT_THETA = 500_000.0
#: Layers that predict further tokens have no experts, and the decoder's own final norm.
FURTHER_LAYER, FURTHER_COUNT = "model.mtp_block.{}.", "num_nextn_predict_layers"
FURTHER = FurtherNames(
    embedding_norm="mtp_emb_norm",
    hidden_norm="mtp_hidden_norm",
    join="mtp_linear_proj",
    final_norm=None,
)
NAMES = WeightNames(unused=(*WeightNames().unused, r"^model\.mtp_", r"^mtp"))
EXPERTS = MoeNames(correction="mlp.moe_statics.e_score_correction_bias")
IMAGES = "experts of images: requests with images are refused"
#: Tensors of published files that hold both kinds of experts, or have another order.
GATE, BOTH = re.compile(r".*\.mlp\.gate\.weight"), re.compile(r".*\.e_score_correction_bias")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Ernie4_5ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    return DenseDecoder(_spec(config, _layers(config, ctx)), ctx)


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Ernie4_5_MoeForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    experts, layers = _experts(config, ctx), _layers(config, ctx)
    spec = _spec(config, _sparse(config, layers, experts))
    ctx.weights.rename(
        r"^model\.(mtp_(?:emb_norm|hidden_norm|linear_proj))\.(\d+)\.", r"model.mtp_block.\2.\1."
    )
    number = count(config, FURTHER_COUNT) if config.get(FURTHER_COUNT) else 0
    model = (ResidualDecoder if ctx.further and number else DenseDecoder)(spec, ctx)
    return add_further(model, spec, ctx, number, FURTHER, FURTHER_LAYER, layers[-1:])


def build_seeing(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Ernie4_5_VLMoeForConditionalGeneration."""
    config = with_expert_defaults(config, SEEING_DEFAULTS)
    sizes = config.get("moe_intermediate_size") or EXPERT_SIZES
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise refuse(config, "moe_intermediate_size", "needs two sizes, of text and of images")
    layers = _layers(config, ctx)
    kinds = config.get("mlp_layer_types") or ["dense", *["sparse"] * (len(layers) - 1)]
    values = {"moe_intermediate_size": sizes[0], "mlp_layer_types": kinds}
    config = replace(config, values={**config.values, **values})
    own = config.size("moe_num_experts")
    others = "|".join(map(str, range(own, 2 * own)))
    ctx.weights.ignore([r"\.mlp\.gate\.weight_1$", rf"\.mlp\.experts\.(?:{others})\."], IMAGES)
    remake(ctx, _of_text)
    layers = with_experts(layers, _experts(config, ctx), sparse_types(config))
    return DenseDecoder(_spec(config, layers), ctx)


def _of_text(names: Iterable[str]) -> Mapping[str, Recipe]:
    """Turn the matrices of routers, and take the first half of what moves their choice."""
    recipes: dict[str, Recipe] = {}
    for name in names:
        if GATE.fullmatch(name):
            recipes[name] = ((name,), lambda gate: gate.mT.contiguous())
        elif BOTH.fullmatch(name):
            recipes[name] = ((name,), lambda bias: bias[:1].contiguous())
    return recipes


def _experts(config: ModelConfig, ctx: BuildContext) -> Mixture:
    shared = count(config, "moe_num_shared_experts") * config.size("moe_intermediate_size")
    ctx.weights.rename(r"\.mlp\.gate\.moe_statics\.", ".mlp.moe_statics.")  # beside stacked experts
    return mixture(
        config,
        RouterSpec(renormalize=True, correction=True),
        experts="moe_num_experts",
        top_k="moe_k",
        shared_size=shared,
        correction_shape=(1, config.size("moe_num_experts")),
        names=EXPERTS,
    )


def _sparse(
    config: ModelConfig, layers: tuple[LayerSpec, ...], experts: Mixture
) -> tuple[LayerSpec, ...]:
    """Give experts to every so-manieth layer between two."""
    first, every = count(config, "moe_layer_start_index"), config.size("moe_layer_interval")
    last = config.require("moe_layer_end_index")
    if type(last) is not int or last < -1:
        raise refuse(config, "moe_layer_end_index", "needs a layer's index, or -1 for the last")
    end = len(layers) if last == -1 else last + 1
    return with_experts(layers, experts, lambda i: (i + 1) % every == 0 and first <= i < end)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    return interleaved(layer_specs(config, ctx, default_theta=DEFAULT_THETA))


def _spec(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    if flag(config, "use_bias"):
        raise refuse(config, "use_bias", "is served without biases")
    return decoder_spec(config, layers, names=NAMES)
