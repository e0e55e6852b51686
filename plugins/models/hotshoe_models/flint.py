"""Flint: Qwen 3's layers with sinks, and experts behind sigmoids; layers without a window do not
rotate q and k.

Defaults are those of transformers' FlintConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, sparse_layers, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
)

DEFAULTS = {
    "vocab_size": 150144,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 49,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "sliding_window": 513,
    "layer_types": None,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_tok": 6,
    "norm_topk_prob": True,
}
#: Layers without experts, where the file names none.
DENSE_LAYERS = [0, 1]
NAMES = replace(QWEN3_NAMES, sinks="self_attn.softmax_offset")
EXPERTS = MoeNames(
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build FlintForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("mlp_only_layers") is None:
        config = replace(config, values={**config.values, "mlp_only_layers": DENSE_LAYERS})
    last = config.size("num_hidden_layers") - 1
    types = layer_types(config, lambda i: FULL if i < 2 or i % 4 == 1 or i == last else SLIDING)
    described = layer_specs(config, ctx, types, optional_size(config, "sliding_window"))
    layers = [layer if layer.window else replace(layer, rotation=None) for layer in described]
    experts = mixture(
        config,
        RouterSpec("sigmoid", renormalize=flag(config, "norm_topk_prob")),
        shared_size=config.size("shared_expert_intermediate_size"),
        names=EXPERTS,
    )
    bias = flag(config, "attention_bias")
    ctx.weights.rename(r"\.self_attn\.sinks$", f".{NAMES.sinks}")  # as transformers calls them
    sparse = with_experts(layers, experts, sparse_layers(config))
    spec = decoder_spec(config, sparse, qkv_bias=bias, o_bias=bias, names=NAMES)
    return DenseDecoder(spec, ctx)
