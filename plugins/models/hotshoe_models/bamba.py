"""Bamba: Mamba-2 blocks, some of them replaced by attention that rotates half of each head.

Defaults are those of transformers' BambaConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.falcon_h1 import DEFAULTS as FALCON
from hotshoe_models.falcon_h1 import FACTORS, NAMES
from hotshoe_models.llama import llama_spec
from hotshoe_models.states import state_block
from hotshoe_models.values import flag, layer_specs, number, refuse, with_defaults

#: Falcon-H1's, without factors and what they scale.
OTHERS = {"mamba_d_ssm", "mamba_norm_before_gate", "mamba_rms_norm", "projectors_bias", *FACTORS}
DEFAULTS = {
    **{key: value for key, value in FALCON.items() if key not in OTHERS},
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.5,
    "attn_layer_indices": None,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BambaForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    attending, bias = _attending(config), flag(config, "mamba_proj_bias")
    layers = tuple(
        layer if i in attending else replace(layer, mixer="state", rotation=None)
        for i, layer in enumerate(layer_specs(config, ctx, partial_rotary=True))
    )
    block = state_block(
        config,
        ctx,
        eps=number(config, "rms_norm_eps"),
        in_bias=bias,
        conv_bias=flag(config, "mamba_conv_bias"),
        out_bias=bias,
    )
    return DenseDecoder(llama_spec(config, layers, names=NAMES, state=block), ctx)


def _attending(config: ModelConfig) -> list[int]:
    """Return the numbers of the layers that attend."""
    given, count = config.get("attn_layer_indices", []), config.size("num_hidden_layers")
    if not isinstance(given, list) or not all(type(i) is int and 0 <= i < count for i in given):
        raise refuse(config, "attn_layer_indices", f"needs numbers of its {count} layers")
    return given
