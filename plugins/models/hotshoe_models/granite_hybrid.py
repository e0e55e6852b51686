"""Granite 4: Granite's factors over Mamba-2 blocks, some layers of attention, and experts or none.

Defaults are those of transformers' GraniteMoeHybridConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bamba import DEFAULTS as BAMBA
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.granite import BY_NAME, MOE_DEFAULTS, NAMES, factors, granite_experts
from hotshoe_models.llama import llama_spec
from hotshoe_models.mixtures import with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import FULL, count, flag, layer_specs, layer_types, number

DEFAULTS = {
    **{key: value for key, value in BAMBA.items() if key.startswith("mamba_")},
    **MOE_DEFAULTS,
    "shared_intermediate_size": 1024,
    "position_embedding_type": None,
    "layer_types": None,
}
#: Types of layers, as files have spelt them, and their mixers.
STATES, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")
TYPES = {**dict.fromkeys(STATES, "state"), **dict.fromkeys(ATTENTION, "attention")}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteMoeHybridForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    turns = config.get("position_embedding_type") == "rope"
    mixers = _mixers(config)
    layers = tuple(
        replace(layer, mixer=mixer, rotation=layer.rotation if turns else None)
        for layer, mixer in zip(
            layer_specs(config, ctx, [FULL] * len(mixers), partial_rotary=True), mixers, strict=True
        )
    )
    size = config.size("shared_intermediate_size")
    if count(config, "num_local_experts"):
        layers = with_experts(layers, granite_experts(config), lambda i: True)
    bias, conv_bias = flag(config, "mamba_proj_bias"), flag(config, "mamba_conv_bias")
    biases = {"in_bias": bias, "out_bias": bias, "conv_bias": conv_bias}
    block = state_block(config, ctx, eps=number(config, "rms_norm_eps"), **biases)
    parts = BY_NAME if config.get("experts_by_name") else NAMES
    names = WeightNames(gate_up=parts.shared_gate_up, down=parts.shared_down)
    differences = {**factors(config), "names": names, "intermediate_size": size, "state": block}
    return DenseDecoder(llama_spec(config, layers, **differences), ctx)


def _mixers(config: ModelConfig) -> list[str]:
    """Return each layer's mixer."""
    types = config.get("layer_types") or config.get("layers_block_type")
    config = replace(config, values={**config.values, "layer_types": types})
    return [TYPES[kind] for kind in layer_types(config, lambda i: "mamba", tuple(TYPES))]
