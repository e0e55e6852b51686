"""Granite with windows and sinks, dense and with experts: each layer may have a rotary base of its
own, of which 0 means that it rotates nothing.

Defaults are those of transformers' GraniteSWAConfig and GraniteMoeSWAConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, Stacked
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.granite import BLOCK, factors, granite_experts
from hotshoe_models.granite import DEFAULTS as GRANITE
from hotshoe_models.granite import MOE_DEFAULTS as GRANITE_MOE
from hotshoe_models.granite import NAMES as GRANITE_EXPERTS
from hotshoe_models.llama import llama_spec
from hotshoe_models.mixtures import with_expert_defaults, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    layer_specs,
    layer_types,
    optional_size,
    refuse,
    rope_of,
    with_defaults,
)

WINDOWS = {"sliding_window": 128, "layer_types": None, "layer_rope_theta": None}
DEFAULTS = {
    **GRANITE,
    **WINDOWS,
    "vocab_size": 100352,
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
MOE_DEFAULTS = {**GRANITE_MOE, **WINDOWS}
#: Every so-manieth layer attends to everything, the first one among them.
PATTERN = 4
NAMES = WeightNames(sinks="self_attn.sinks")
EXPERTS = replace(
    GRANITE_EXPERTS,
    router=f"{BLOCK}router",
    stacked=Stacked(gate_up=f"{BLOCK}experts.gate_up_proj", down=f"{BLOCK}experts.down_proj"),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteSWAForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = llama_spec(config, _layers(config, ctx), names=NAMES, **factors(config))
    return DenseDecoder(spec, ctx)


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteMoeSWAForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    experts = replace(granite_experts(config), names=EXPERTS)
    layers = with_experts(_layers(config, ctx), experts, lambda i: True)
    return DenseDecoder(llama_spec(config, layers, names=NAMES, **factors(config)), ctx)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    types = layer_types(config, lambda i: SLIDING if i % PATTERN else FULL)
    window, key = optional_size(config, "sliding_window"), "layer_rope_theta"
    bases = config.get(key)
    if bases is None:
        return layer_specs(config, ctx, types, window)
    valid = isinstance(bases, list) and all(type(base) in (int, float) for base in bases)
    if not valid or len(bases) != len(types) or min(bases) < 0:
        raise refuse(config, key, f"needs a number of at least 0 for each of {len(types)} layers")
    rope, found = dict(rope_of(config).values), []
    for i, base in enumerate(bases):
        own = {"rope_parameters": {**rope, "rope_theta": base or 1.0}, "rope_scaling": None}
        layer = layer_specs(replace(config, values={**config.values, **own}), ctx, types, window)[i]
        found.append(layer if base else replace(layer, rotation=None))
    return tuple(found)
