"""GPT-J: one layer norm before attention and MLP, which run in parallel; neighboring channels of
the first part of each head are rotated in pairs. CodeGen stacks q, v and k by fourths of the heads.

Defaults are those of transformers' GPTJConfig, which CodeGenConfig has too.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gpt2 import KEYS
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    head_dim,
    interleaved,
    layer_specs,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    input_norm="ln_1",
    mlp_norm=None,
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    o="attn.out_proj",
    gate_up=("mlp.fc_in",),
    down="mlp.fc_out",
    bare=(r"^(?=(wte|h|ln_f)\.)", "transformer."),
    unused=(r"\.attn\.(masked_)?bias$",),
)
#: Shares of the heads that CodeGen was trained in.
SHARDS = 4
CODEGEN_NAMES = replace(
    NAMES,
    qkv=("attn.qkv_proj",),
    qkv_shards=SHARDS,
    unused=(r"\.attn\.causal_mask$",),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTJForCausalLM."""
    return _decoder(config, ctx, NAMES)


def build_codegen(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build CodeGenForCausalLM."""
    if with_defaults(config, DEFAULTS).size("n_head") % SHARDS:
        raise refuse(config, "n_head", f"has stacked q, v and k of {SHARDS} shares of the heads")
    return _decoder(config, ctx, CODEGEN_NAMES)


def _decoder(config: ModelConfig, ctx: BuildContext, names: WeightNames) -> DenseDecoder:
    config = with_defaults(config, DEFAULTS)
    if flag(config, "tie_word_embeddings"):
        raise refuse(config, "tie_word_embeddings", "has an output matrix with a bias")
    sizes = {key: config.size(own) for key, own in KEYS.items()}
    others = {"num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **sizes, **others})
    rotated, channels = config.size("rotary_dim"), head_dim(config)
    if rotated > channels:
        raise refuse(config, "rotary_dim", f"has heads of {channels} channels")
    rotation = {
        "partial_rotary_factor": rotated / channels,
        "max_position_embeddings": config.size("n_positions"),
    }
    config = replace(config, values={**config.values, **rotation})
    spec = decoder_spec(
        config,
        interleaved(layer_specs(config, ctx, partial_rotary=True)),
        intermediate_size=config.size("n_inner", 4 * sizes["hidden_size"]),
        activation=activation(config, "activation_function", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_epsilon"),
        parallel=True,
        mlp_bias=True,
        lm_head_bias=True,
        names=names,
    )
    return DenseDecoder(spec, ctx)
