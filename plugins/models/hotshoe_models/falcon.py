"""Falcon 7B, 40B, 180B and Falcon 2: attention and MLP in parallel, behind one layer norm or two;
few kv heads, whose queries, key and value lie together in the checkpoint. Falcon RW: ALiBi.

Defaults are those of transformers' FalconConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import Alibi
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    head_dim,
    layer_specs,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 65024,
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_ln_in_parallel_attn": None,
    "layer_norm_epsilon": 1e-5,
    "num_kv_heads": None,
    "alibi": False,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "max_position_embeddings": 2048,
    "rope_parameters": None,
    "ffn_hidden_size": None,
    "activation": "gelu",
    "tie_word_embeddings": True,
}
NAMES = WeightNames(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv=("self_attention.query_key_value",),
    grouped_qkv=True,
    o="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    bare=(r"^(?=(word_embeddings|h|ln_f)\.)", "transformer."),
)
ONE_NORM = replace(NAMES, mlp_norm=None)
TWO_NORMS = replace(NAMES, input_norm="ln_attn", mlp_norm="ln_mlp")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build FalconForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    new = flag(config, "new_decoder_architecture")
    heads = config.size("num_attention_heads")
    shared = flag(config, "multi_query") and not new
    kv_heads = 1 if shared else config.size("num_kv_heads", heads) if new else heads
    if heads % kv_heads:
        raise refuse(config, "num_kv_heads", f"has {heads} query heads to share them")
    values = {**config.values, "num_key_value_heads": kv_heads, "head_dim": None}
    config = replace(config, values=values)
    parallel = new or flag(config, "parallel_attn")
    bias, layers, alibi = flag(config, "bias"), layer_specs(config, ctx), None
    if flag(config, "alibi"):  # whose slopes are scaled as q k is
        alibi = Alibi(heads, factor=head_dim(config) ** -0.5)
        layers = tuple(replace(layer, rotation=None) for layer in layers)
    spec = decoder_spec(
        config,
        layers,
        alibi=alibi,
        intermediate_size=config.size("ffn_hidden_size", 4 * config.size("hidden_size")),
        activation=activation(config, "activation", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_epsilon"),
        parallel=parallel,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        names=_names(config, new=new, parallel=parallel),
    )
    return DenseDecoder(spec, ctx)


def _names(config: ModelConfig, *, new: bool, parallel: bool) -> WeightNames:
    """Return where weights are; the later layers have two norms unless the file says one."""
    if not parallel:
        return NAMES
    norms = config.size("num_ln_in_parallel_attn", 2) if new else 1
    if norms > 2:
        raise refuse(config, "num_ln_in_parallel_attn", "has one norm or two")
    return TWO_NORMS if norms == 2 else ONE_NORM
