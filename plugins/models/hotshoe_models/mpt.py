"""MPT 7B and 30B: ALiBi, layer norms and no biases.

Defaults are those of transformers' MptConfig and MptAttentionConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import Alibi
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    decoder_spec,
    mapping,
    number,
    optional_number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50368,
    "layer_norm_epsilon": 1e-5,
    "attn_config": None,
    "learned_pos_emb": True,
    "logit_scale": None,
    "no_bias": True,
    "embedding_fraction": 1.0,
    "norm_type": "low_precision_layernorm",
    "tie_word_embeddings": True,
}
ATTENTION = {
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
    "alibi_bias_max": 8,
}
#: The only values served of options, the model's and those of attention.
FIXED = {"no_bias": True, "logit_scale": None, "expansion_ratio": 4}
FIXED_ATTENTION = {
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
}
#: Values of `norm_type`: one norm, computed in one type or another.
NORMS = ("layernorm", "low_precision_layernorm")
NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    input_norm="norm_1",
    mlp_norm="norm_2",
    qkv=("attn.Wqkv",),
    o="attn.out_proj",
    gate_up=("ffn.up_proj",),
    down="ffn.down_proj",
    bare=(r"^(?=(wte|blocks|norm_f)\.)", "transformer."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MPTForCausalLM, as published files call it, or MptForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    attention = replace(config, values={**ATTENTION, **mapping(config, "attn_config")})
    for part, fixed in ((config, FIXED), (attention, FIXED_ATTENTION)):
        for key, value in fixed.items():
            if part.get(key) != value:
                raise refuse(part, key, f"is served with {value!r} alone")
    if config.get("norm_type") not in NORMS:
        raise refuse(config, "norm_type", f"has norms of type {' or '.join(NORMS)}")
    size, heads = config.size("d_model"), config.size("n_heads")
    if size % heads:
        raise refuse(config, "n_heads", f"divides a d_model of {size}")
    others = {"num_attention_heads": heads, "num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **others, "hidden_size": size})
    scale = optional_number(attention, "softmax_scale")
    spec = decoder_spec(
        config,
        (LayerSpec(rotation=None),) * config.size("n_layers"),
        attention_scale=(size // heads) ** -0.5 if scale is None else scale,
        alibi=Alibi(heads, max_bias=number(attention, "alibi_bias_max")),
        qkv_limit=optional_number(attention, "clip_qkv"),
        intermediate_size=4 * size,
        activation="gelu",
        gated=False,
        norm="layer",
        norm_bias=False,
        norm_eps=number(config, "layer_norm_epsilon"),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
