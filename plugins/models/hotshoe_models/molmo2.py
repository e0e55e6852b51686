"""Molmo 2 (text): Qwen 3's or OLMo's norms, stacked matrices with ups before gates, and a table of
its own for tokens of images, which no text has.

Defaults are those of transformers' Molmo2TextConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.composite import WHY
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, mapping, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 151936,
    "additional_vocab_size": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 36864,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "qk_norm_type": "qwen3",
    "norm_after": False,
    "rope_parameters": None,
    "rope_scaling_layers": None,
}
#: What published files call two of these.
SPELLED = {"qkv_bias": "attention_bias", "layer_norm_eps": "rms_norm_eps"}
#: Whose norms of q and k these are: of all heads together, or of each.
WIDE = {"qwen3": False, "olmo": True}
TABLE = "model.transformer.wte"
NAMES = WeightNames(
    embedding=TABLE,
    final_norm="model.transformer.ln_f",
    layer="model.transformer.blocks.{}.",
    qkv=("self_attn.att_proj",),
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    o="self_attn.attn_out",
    down="mlp.ff_out",
    input_norm="attn_norm",
    mlp_norm="ff_norm",
)
BEHIND = {
    "input_norm": None,
    "mlp_norm": None,
    "post_attention_norm": "attn_norm",
    "post_mlp_norm": "ff_norm",
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Molmo2ForConditionalGeneration."""
    values = {SPELLED.get(key, key): value for key, value in config.values.items()}
    config = with_defaults(replace(config, values=values), DEFAULTS)
    kind = config.get("qk_norm_type")
    if not isinstance(kind, str) or kind not in WIDE:
        raise refuse(config, "qk_norm_type", f"knows {', '.join(WIDE)}")
    names = replace(NAMES, wide_qk_norm=WIDE[kind])
    if flag(config, "norm_after"):
        names = replace(names, **BEHIND)
    layers = _layers(config, ctx)
    ctx.weights.rename(rf"^{TABLE}\.embedding$", f"{TABLE}.weight")
    ctx.weights.ignore([rf"^{TABLE}\.new_embedding$"], WHY)
    for i in range(len(layers)):
        mlp = f"{names.layer.format(i)}mlp"
        parts = ((f"{mlp}.up_proj.weight", f"{mlp}.gate_proj.weight"),)
        ctx.weights.unstack(f"{mlp}.ff_proj.weight", parts)
    bias = flag(config, "attention_bias")
    return DenseDecoder(decoder_spec(config, layers, qkv_bias=bias, names=names), ctx)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe the layers, of which some may rotate by the base alone."""
    layers, stretched = layer_specs(config, ctx), config.get("rope_scaling_layers")
    if stretched is None:
        return layers
    known = range(len(layers))
    if not isinstance(stretched, list) or any(
        type(i) is not int or i not in known for i in stretched
    ):
        raise refuse(config, "rope_scaling_layers", f"needs numbers of its {len(layers)} layers")
    theta = mapping(config, "rope_parameters").get("rope_theta", config.get("rope_theta"))
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, "rope_scaling": None}
    others = layer_specs(replace(config, values={**config.values, **plain}), ctx)
    return tuple(layers[i] if i in stretched else other for i, other in enumerate(others))
