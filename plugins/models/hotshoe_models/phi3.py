"""Phi-3, 3.5 and Phi-4 (mini, multimodal's text): stacked matrices in the checkpoint, longrope,
partial rotation.

Defaults are those of transformers' Phi3Config and Phi4MultimodalConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    layer_specs,
    layer_types,
    mapping,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": None,
}
SEEING_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 200064,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
#: What a model that sees and hears has beside its text, adapters for images and sounds among it.
UNREAD = (r"\.embed_tokens_extend\.", r"\.lora_[AB]\.")
WHY = "the parts that see or hear: requests with images or audio are refused"
NAMES = WeightNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
#: Spellings of rope_type that all mean longrope in files of this family.
LONGROPE = ("longrope", "su", "yarn")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Phi3ForCausalLM."""
    return _decoder(with_defaults(config, DEFAULTS), ctx)


def build_seeing(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Phi4MultimodalForCausalLM, as first published Phi4MMForCausalLM."""
    ctx.weights.rename(r"\.base_layer\.", ".")
    ctx.weights.ignore(UNREAD, WHY)
    return _decoder(with_defaults(config, SEEING_DEFAULTS), ctx)


def _decoder(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    config = _with_rope(config)
    window = optional_size(config, "sliding_window")
    types = layer_types(config, lambda i: FULL if window is None else SLIDING)
    layers = layer_specs(config, ctx, types, window, partial_rotary=True)
    return DenseDecoder(decoder_spec(config, layers, names=NAMES), ctx)


def _with_rope(config: ModelConfig) -> ModelConfig:
    """Settle the type of rotation, of which this family has two."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = mapping(config, key)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default" and kind not in LONGROPE:
        raise refuse(config, key, f"knows only default and {', '.join(LONGROPE)}")
    settled = {**rope, "rope_type": "default" if kind == "default" else "longrope"}
    return replace(config, values={**config.values, key: settled})
