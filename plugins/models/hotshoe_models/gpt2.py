"""GPT-2: a learned vector for each position, layer norms, and matrices that are stored transposed.

Defaults are those of transformers' GPT2Config.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
#: What other families call these.
KEYS = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
NAMES = WeightNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    input_norm="ln_1",
    mlp_norm="ln_2",
    qkv=("attn.c_attn",),
    o="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    bare=(r"^(?=(wte|wpe|h|ln_f)\.)", "transformer."),
    unused=(r"\.attn\.(masked_)?bias$",),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPT2LMHeadModel."""
    return DenseDecoder(gpt_spec(with_defaults(config, DEFAULTS), None), ctx)


def gpt_spec(config: ModelConfig, num_kv_heads: int | None, **differences: Any) -> DecoderSpec:
    """Describe a decoder of GPT-2's shape, changed by a family's differences.

    Args:
        config: With the family's defaults.
        num_kv_heads: None for as many as there are of queries.
        differences: Other fields of the decoder.

    Raises:
        CheckpointError: A value is missing, malformed or not supported.
    """
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if flag(config, name):
            raise refuse(config, name, "is served without it")
    sizes = {key: config.size(own) for key, own in KEYS.items()}
    others = {"num_key_value_heads": num_kv_heads, "head_dim": None}
    config = replace(config, values={**config.values, **sizes, **others})
    own: dict[str, Any] = {"gated": False, "transposed": True, "names": NAMES}
    if not flag(config, "scale_attn_weights"):
        own["attention_scale"] = 1.0
    if "activation" not in differences:
        own["activation"] = activation(config, "activation_function", PLAIN_ACTIVATIONS)
    return decoder_spec(
        config,
        (LayerSpec(rotation=None),) * sizes["num_hidden_layers"],
        intermediate_size=config.size("n_inner", 4 * sizes["hidden_size"]),
        norm="layer",
        norm_eps=number(config, "layer_norm_epsilon"),
        num_positions=config.size("n_positions"),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        **own | differences,
    )
