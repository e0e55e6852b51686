"""Zamba 2: state-space blocks, and a few transformers that several layers share.

Defaults are those of transformers' Zamba2Config.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import decoder_spec, flag, number, refuse, with_defaults
from hotshoe_models.zamba_layers import Sharing, ZambaDecoder

DEFAULTS = {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_size": 2560,
    "num_hidden_layers": 54,
    "layers_block_type": None,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "time_step_min": 0.001,
    "add_bias_linear": False,
    "intermediate_size": None,
    "hidden_act": "gelu",
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "num_mem_blocks": 1,
    "use_shared_attention_adapter": False,
    "adapter_rank": 128,
    "use_mem_rope": False,
    "rope_parameters": None,
    "rms_norm_eps": 1e-5,
    "use_long_context": False,
    "tie_word_embeddings": True,
}
#: Kinds of layers, by the words of files: whether a transformer serves one.
KINDS = {"mamba": False, "linear_attention": False, "hybrid": True}
#: The layers that one serves where a file does not say it, of 54.
HYBRID = (6, 12, 18, 24, 30, 36, 42, 47, 51)
KEYS = {
    "heads": "n_mamba_heads",
    "head_dim": "mamba_headdim",
    "groups": "mamba_ngroups",
    "state": "mamba_d_state",
    "conv": "mamba_d_conv",
    "expand": "mamba_expand",
    "activation": "mamba_act",
}
BLOCK_EPS = 1e-5
NAMES = WeightNames(final_norm="model.final_layernorm")
SERVED = replace(NAMES, layer="model.layers.{}.mamba_decoder.")


def build(config: ModelConfig, ctx: BuildContext) -> ZambaDecoder:
    """Build Zamba2ForCausalLM."""
    config = _settled(with_defaults(config, DEFAULTS))
    served = _served(config)
    heads, width = config.size("num_attention_heads"), 2 * config.size("hidden_size")
    if width % heads:
        raise refuse(config, "num_attention_heads", f"divides {width} channels")
    rotation = None
    if flag(config, "use_mem_rope"):
        rotation = Rotation.from_config(config.values, width // heads, ctx.max_model_len)
    layers = tuple(
        LayerSpec(rotation if one else None, mixer="state", names=SERVED if one else NAMES)
        for one in served
    )
    spec = decoder_spec(
        config,
        layers,
        head_dim=width // heads,
        attention_scale=(width // heads / 2) ** -0.5,
        state=state_block(config, ctx, KEYS, eps=BLOCK_EPS),
        names=NAMES,
    )
    hybrid = tuple(i for i, one in enumerate(served) if one)
    adapts = flag(config, "use_shared_attention_adapter")
    sharing = Sharing(hybrid, config.size("num_mem_blocks"), config.size("adapter_rank"), adapts)
    return ZambaDecoder(spec, ctx, sharing)


def _settled(config: ModelConfig) -> ModelConfig:
    """Fill in what follows from other values."""
    # Files whose matrix for outputs is of its own have transformers for each layer, too.
    fixed = {"add_bias_linear": False, "use_long_context": False, "tie_word_embeddings": True}
    for key, only in fixed.items():
        if config.get(key) is not only:
            raise refuse(config, key, f"is served with {str(only).lower()} alone")
    values: dict[str, Any] = dict(config.values)
    values["intermediate_size"] = config.size("intermediate_size", 4 * config.size("hidden_size"))
    values["time_step_limit"] = [number(config, "time_step_min"), float("inf")]
    values["mamba_act"] = "silu"
    return replace(config, values=values)


def _served(config: ModelConfig) -> list[bool]:
    """Return which layers a transformer serves."""
    key, count = "layers_block_type", config.size("num_hidden_layers")
    given = config.get(key)
    if given is None:
        given = ["hybrid" if i in HYBRID else "mamba" for i in range(54)]
    known = isinstance(given, list) and all(isinstance(x, str) and x in KINDS for x in given)
    if not known or len(given) != count:
        raise refuse(config, key, f"needs {', '.join(KINDS)} for each of {count} layers")
    return [KINDS[kind] for kind in given]
