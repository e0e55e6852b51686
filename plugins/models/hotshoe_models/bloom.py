"""BLOOM and BLOOMZ: ALiBi, layer norms, one of embeddings among them, biases everywhere; q, k and v
of a head lie together in the checkpoint.

Defaults are those of transformers' BloomConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import Alibi
from hotshoe_models import falcon
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import decoder_spec, flag, number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 250880,
    "hidden_size": 64,
    "n_layer": 2,
    "n_head": 8,
    "layer_norm_epsilon": 1e-5,
    "apply_residual_connection_post_layernorm": False,
    "tie_word_embeddings": True,
}
#: Names in files of keys that other families have too.
OLDER = {
    "n_embed": "hidden_size",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
NAMES = replace(
    falcon.NAMES,
    embedding_norm="transformer.word_embeddings_layernorm",
    bare=(r"^(?=(word_embeddings(_layernorm)?|h|ln_f)\.)", "transformer."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BloomForCausalLM."""
    values = {OLDER.get(key, key): value for key, value in config.values.items()}
    config = with_defaults(replace(config, values=values), DEFAULTS)
    if flag(config, "apply_residual_connection_post_layernorm"):
        raise refuse(
            config, "apply_residual_connection_post_layernorm", "adds to what is not normed"
        )
    size, heads = config.size("hidden_size"), config.size("n_head")
    if size % heads:
        raise refuse(config, "n_head", f"divides a hidden size of {size}")
    others = {"num_attention_heads": heads, "num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **others})
    spec = decoder_spec(
        config,
        (LayerSpec(rotation=None),) * config.size("n_layer"),
        alibi=Alibi(heads),
        intermediate_size=4 * size,
        activation="gelu_tanh",
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_epsilon"),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
