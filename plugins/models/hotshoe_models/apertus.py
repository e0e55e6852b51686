"""Apertus: MLPs of xIELU without gates, norms of q and k per head.

Apertus 1.5 has tokens of images and sounds, too, which its output matrix may lack. Defaults are
those of transformers' ApertusConfig and Apertus1p5TextConfig.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    refuse,
    with_defaults,
    with_rope,
)

DEFAULTS = {
    **{key: value for key, value in SHAPE.items() if key != "mlp_bias"},
    "vocab_size": 131072,
    "intermediate_size": 14336,
    "hidden_act": "xielu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
}
TEXT_DEFAULTS = {**DEFAULTS, "vocab_size": 266752, "output_vocab_size": None}
THETA = 12_000_000.0
ROPE = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
WHY = "the parts that see or hear: requests with images or audio are refused"
NAMES = WeightNames(
    input_norm="attention_layernorm",
    mlp_norm="feedforward_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    gate_up=("mlp.up_proj",),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ApertusForCausalLM."""
    return _decoder(with_defaults(config, DEFAULTS), ctx)


def build_text(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Apertus1p5TextForCausalLM, and the text part of Apertus1p5ForConditionalGeneration."""
    config = with_defaults(config, TEXT_DEFAULTS)
    rows = config.size("vocab_size")
    kept = config.size("output_vocab_size", rows)
    if kept > rows:
        raise refuse(config, "output_vocab_size", f"has a vocab_size of {rows}")
    if kept < rows and flag(config, "tie_word_embeddings"):
        raise refuse(config, "tie_word_embeddings", "has fewer rows in its output matrix")
    ctx.weights.ignore([r"^(model\.)?(vision|audio)_tokenizer\."], WHY)
    flat = replace(config, values={**config.values, "vocab_size": kept})
    return _decoder(flat, ctx, table_size=rows)


def _decoder(config: ModelConfig, ctx: BuildContext, **differences: Any) -> DenseDecoder:
    config = with_rope(config, ROPE)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, default_theta=THETA),
        activation=activation(config, "hidden_act", {**PLAIN_ACTIVATIONS, "xielu": "xielu"}),
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        names=NAMES,
        **differences,
    )
    return DenseDecoder(spec, ctx)
