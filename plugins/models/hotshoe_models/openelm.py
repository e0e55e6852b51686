"""OpenELM 270M to 3B: layers that grow, with more heads and wider MLPs the later they come.

Source: the code beside these checkpoints, and the keys of their files.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gguf.keys import CONVERTED
from hotshoe_models.published import respelled
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, number, refuse, with_defaults

NAMES = WeightNames(
    embedding="transformer.token_embeddings",
    final_norm="transformer.norm",
    layer="transformer.layers.{}.",
    input_norm="attn_norm",
    mlp_norm="ffn_norm",
    qkv=("attn.qkv_proj",),
    qk_norm=("attn.q_norm", "attn.k_norm"),
    o="attn.out_proj",
    gate_up=("ffn.proj_1",),
    down="ffn.proj_2",
    bare=(r"^(?=(token_embeddings|layers|norm)\.)", "transformer."),
)
KEYS = {
    "model_dim": "hidden_size",
    "num_transformer_layers": "num_hidden_layers",
    "max_context_length": "max_position_embeddings",
    "rope_freq_constant": "rope_theta",
    "share_input_output_layers": "tie_word_embeddings",
}
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 12,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "activation_fn_name": "swish",
    "normalization_layer_name": "rms_norm",
    "normalize_qk_projections": True,
    "ffn_with_glu": True,
    "ffn_dim_divisor": 256,
}
#: The only values served of options.
FIXED = {
    "activation_fn_name": "swish",
    "normalization_layer_name": "rms_norm",
    "ffn_with_glu": True,
}

#: Of MLPs, which no model is near.
MOST_FACTOR = 1024


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OpenELMForCausalLM."""
    config = with_defaults(respelled(config, KEYS), DEFAULTS)
    for key, value in FIXED.items():
        if config.get(key) != value:
            raise refuse(config, key, f"is served with {value} alone")
    heads, kv_heads = (_each(config, key) for key in ("num_query_heads", "num_kv_heads"))
    own: dict[str, Any] = {"num_attention_heads": heads[0], "num_key_value_heads": kv_heads[0]}
    config = replace(config, values={**config.values, **own})
    sizes = zip(layer_specs(config, ctx), heads, kv_heads, _widths(config), strict=True)
    layers = tuple(
        replace(layer, num_heads=own, num_kv_heads=shared, intermediate_size=width)
        for layer, own, shared, width in sizes
    )
    normed = flag(config, "normalize_qk_projections")
    names = NAMES if normed else replace(NAMES, qk_norm=None)
    if flag(config, CONVERTED):
        names = replace(names, gate_up=("ffn.gate", "ffn.up"))
    spec = decoder_spec(config, layers, intermediate_size=1, activation="silu", names=names)
    return DenseDecoder(spec, ctx)


def _each(config: ModelConfig, key: str) -> list[int]:
    """Return a size of each layer."""
    found, count = config.get(key), config.size("num_hidden_layers")
    if not isinstance(found, list) or len(found) != count:
        raise refuse(config, key, "needs a number for each layer")
    return [replace(config, values={key: value}).size(key) for value in found]


def _widths(config: ModelConfig) -> list[int]:
    """Return the channels between each layer's MLP matrices: multiples of a step, no less than 0.9
    of what the file says."""
    size, step = config.size("hidden_size"), config.size("ffn_dim_divisor")
    key = "ffn_multipliers"
    factors, count = config.get(key), config.size("num_hidden_layers")
    if not isinstance(factors, list) or len(factors) != count:
        raise refuse(config, key, "needs a number for each layer")
    own = [number(replace(config, values={key: factor}), key) for factor in factors]
    if max(own) > MOST_FACTOR:
        raise refuse(config, key, f"has factors up to {MOST_FACTOR}")
    exact = [factor * size for factor in own]
    nearest = [max(int(width + step / 2) // step * step, step) for width in exact]
    return [n + step if n < 0.9 * w else n for n, w in zip(nearest, exact, strict=True)]
