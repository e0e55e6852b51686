"""gpt-oss: sinks in attention, windows in every second layer, experts with clamped gates.

Published checkpoints keep experts in MXFP4; those that were converted to plain numbers are served
as well. Defaults are those of transformers' GptOssConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    optional_size,
)

DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": 128,
    "layer_types": None,
    "attention_bias": True,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}
DEFAULT_THETA = 150_000.0
#: Where a file says nothing of rotation.
DEFAULT_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
NAMES = WeightNames(sinks="self_attn.sinks")
EXPERTS = MoeNames(
    router="mlp.router",
    stacked=Stacked(
        gate_up="mlp.experts.gate_up_proj",
        gate_up_bias="mlp.experts.gate_up_proj_bias",
        down="mlp.experts.down_proj",
        down_bias="mlp.experts.down_proj_bias",
        transposed=True,
        interleaved=True,
        packed=("blocks", "scales"),
    ),
)
#: Of files that have each expert's matrices, gate and up apart.
BY_NAME = replace(EXPERTS, stacked=None)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GptOssForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        config = replace(config, values={**config.values, "rope_parameters": DEFAULT_ROPE})
    types = layer_types(config, lambda i: FULL if i % 2 else SLIDING)
    window = optional_size(config, "sliding_window")
    layers = layer_specs(config, ctx, types, window, default_theta=DEFAULT_THETA)
    experts = mixture(
        config,
        RouterSpec(renormalize=True),
        experts="num_local_experts",
        size="intermediate_size",
        limit=number(config, "swiglu_limit"),
        alpha=number(config, "swiglu_alpha"),
        shift=1.0,
        bias=True,
        router_bias=True,
        names=BY_NAME if config.get("experts_by_name") else EXPERTS,
    )
    layers, bias = with_experts(layers, experts, lambda i: True), flag(config, "attention_bias")
    spec = decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=NAMES)
    return DenseDecoder(spec, ctx)
