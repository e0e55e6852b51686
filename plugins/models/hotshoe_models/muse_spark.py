"""Muse Spark: Muse Glimmer's layers with experts, whose outputs are normed one by one, and gates of
the residual.

Defaults are those of transformers' MuseSparkTextConfig.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.muse_glimmer import NAMES, muse_layers
from hotshoe_models.spark_layers import SparkDecoder, SparkParts
from hotshoe_models.values import decoder_spec, flag, number, optional_number, refuse, with_rope

DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 8192,
    "intermediate_size": 16384,
    "num_hidden_layers": 62,
    "num_attention_heads": 128,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "post_norm_eps": 1e-8,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "layer_rope_theta": None,
    "attention_bias": False,
    "sliding_window": 2048,
    "layer_types": None,
    "mlp_layer_types": None,
    "final_logit_softcapping": 20.0,
    "qk_scale_factor": 5.4730064863875,
    "output_multiplier": 0.1767766952966369,
    "moe_hidden_size": 4096,
    "moe_intermediate_size": 4096,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 1.0,
    "residual_gate_temperature": 0.3,
}
ROPE = {"rope_theta": 500_000.0}
EXPERTS = MoeNames(
    stacked=Stacked(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", named=True),
    latents=("mlp.pre_expert_proj", "mlp.post_expert_proj"),
)


def build(config: ModelConfig, ctx: BuildContext) -> SparkDecoder:
    """Build the text part of MuseSparkForConditionalGeneration."""
    config = with_rope(with_expert_defaults(config, DEFAULTS), ROPE)
    if flag(config, "attention_bias"):
        raise refuse(config, "attention_bias", "has no biases")
    factor, eps = number(config, "output_multiplier"), number(config, "post_norm_eps")
    experts = mixture(
        config,
        RouterSpec(
            "sigmoid",
            renormalize=True,
            scale=number(config, "routed_scaling_factor"),
            correction=True,
        ),
        experts="num_local_experts",
        latent_size=config.size("moe_hidden_size"),
        names=EXPERTS,
    )
    every = config.get("mlp_layer_types") is None
    sparse = (lambda i: True) if every else sparse_types(config)
    spec = decoder_spec(
        config,
        with_experts(muse_layers(config, ctx), experts, sparse),
        attention_scale=number(config, "qk_scale_factor") * config.size("head_dim") ** -0.5,
        gated_attention=True,
        norm_offset=1.0,
        final_norm_offset=0.0,
        post_norm_eps=eps,
        unit_embedding=True,
        logits_divisor=1.0 / factor,
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        names=replace(NAMES, embedding_norm="model.embed_tokens.embed_norm"),
    )
    temperature = number(config, "residual_gate_temperature")
    return SparkDecoder(spec, ctx, SparkParts(temperature=temperature, router_factor=factor))
