"""Qwen3-Next: gated-delta blocks, every fourth layer gated attention, and experts.

Norms add 1 to their weights. Defaults are those of transformers' Qwen3NextConfig.
"""

from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deltas import delta_spec, mixed_types, with_deltas
from hotshoe_models.further import FurtherNames, add_further
from hotshoe_models.mixtures import mixture, sparse_layers, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.qwen_moe import NAMES
from hotshoe_models.spec import DecoderSpec, DeltaBlock, LayerSpec, Projection
from hotshoe_models.values import FULL, count, decoder_spec, flag, layer_specs

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
    "mlp_only_layers": None,
    "layer_types": None,
}
FURTHER = FurtherNames(
    embedding_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    join="fc",
    final_norm="norm",
    beside="mtp.",
    passes_normed=True,
)
FURTHER_LAYER = "mtp.layers.{}."
#: Key of the number of layers that predict further tokens.
COUNT = "num_nextn_predict_layers"
JOINED = Projection((("in_proj_qkvz", ("q", "k", "v", "z")),), grouped=True)
#: Of files that have them part by part.
APART = Projection((("in_proj_qkv", ("q", "k", "v")), ("in_proj_z", ("z",))))
GATES = Projection((("in_proj_ba", ("beta", "decay")),), grouped=True)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen3NextForCausalLM."""
    return drafting(config, ctx, describe(config, ctx), COUNT)


def describe(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe Qwen3NextForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    layers = mixed_layers(config, ctx)
    if count(config, "num_experts"):
        router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
        shared = config.size("shared_expert_intermediate_size")
        experts = mixture(config, router, shared_size=shared, shared_gated=True, names=NAMES)
        layers = with_experts(layers, experts, sparse_layers(config))
    projections = (APART if config.get("qkv_apart") else JOINED, GATES)
    return gated_spec(config, ctx, layers, projections)


def drafting(config: ModelConfig, ctx: BuildContext, spec: DecoderSpec, key: str) -> DenseDecoder:
    """Build a decoder, and behind it the layer of full attention that predicts further tokens.

    Args:
        key: Of the number of such layers; published files have one, and may not say so.
    """
    model, number = DenseDecoder(spec, ctx), config.size(key, 1) if config.get(key, 1) else 0
    own = [layer for layer in spec.layers if layer.mixer == "attention"][-1:]
    return add_further(model, spec, ctx, number if own else 0, FURTHER, FURTHER_LAYER, own)


def mixed_layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe layers of either attention, without experts."""
    types = mixed_types(config)
    layers = layer_specs(config, ctx, [FULL] * len(types), partial_rotary=True)
    return with_deltas(layers, types)


def gated_spec(
    config: ModelConfig,
    ctx: BuildContext,
    layers: tuple[LayerSpec, ...],
    projections: tuple[Projection, ...],
    **differences: Any,
) -> DecoderSpec:
    """Describe a decoder of gated-delta blocks and gated attention."""
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    bias = flag(config, "attention_bias")
    return decoder_spec(
        config,
        layers,
        norm_offset=1.0,
        qkv_bias=bias,
        o_bias=bias,
        gated_attention=True,
        delta=DeltaBlock(
            delta=delta_spec(config, ctx),
            projections=projections,
            tiled=bool(config.get("value_heads_tiled")),
        ),
        names=QWEN3_NAMES,
        **differences,
    )
