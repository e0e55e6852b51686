"""GPT-Neo and TinyStories: a learned vector for each position, scores without a scale, a window on
some layers.

Defaults are those of transformers' GPTNeoConfig.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gpt2 import NAMES as GPT2
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    number,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50257,
    "max_position_embeddings": 2048,
    "hidden_size": 2048,
    "num_layers": 24,
    "attention_types": None,
    "num_heads": 16,
    "intermediate_size": None,
    "window_size": 256,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
#: Types of layers in order and how often they recur, in a file that does not say.
TYPES = [[["global", "local"], 12]]
NAMES = replace(
    GPT2,
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    o="attn.attention.out_proj",
    unused=(r"\.attn\.attention\.(masked_)?bias$",),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTNeoForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    size, count = config.size("hidden_size"), config.size("num_layers")
    sizes = {
        "num_hidden_layers": count,
        "num_attention_heads": config.size("num_heads"),
        "num_key_value_heads": None,
        "head_dim": None,
    }
    config = replace(config, values={**config.values, **sizes})
    window = config.size("window_size")
    spec = decoder_spec(
        config,
        tuple(LayerSpec(None, window if local else None) for local in _are_local(config, count)),
        intermediate_size=config.size("intermediate_size", 4 * size),
        activation=activation(config, "activation_function", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_epsilon"),
        num_positions=config.size("max_position_embeddings"),
        attention_scale=1.0,
        o_bias=True,
        mlp_bias=True,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def _are_local(config: ModelConfig, count: int) -> list[bool]:
    """Tell of each layer whether it has a window."""
    given: Any = config.get("attention_types")
    given = TYPES if given is None else given
    valid = isinstance(given, list) and all(
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], list)
        and all(kind in ("global", "local") for kind in item[0])
        and type(item[1]) is int
        and 0 <= item[1] <= count
        for item in given
    )
    if not valid or sum(len(kinds) * times for kinds, times in given) != count:
        raise refuse(
            config,
            "attention_types",
            f'needs lists of "global" and "local" with how often they recur, for {count} layers',
        )
    return [kind == "local" for kinds, times in given for kind in kinds * times]
