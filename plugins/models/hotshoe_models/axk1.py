"""A.X K1: DeepSeek-V3's shape with a norm behind experts.

Defaults are those of transformers' AXK1Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import V3_DEFAULTS, corrected_router, latent_spec, with_mixtures
from hotshoe_models.mixtures import sparse_types, with_expert_defaults

LACKS = {"first_k_dense_replace", "num_nextn_predict_layers"}
DEFAULTS = {
    **{key: value for key, value in V3_DEFAULTS.items() if key not in LACKS},
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 192,
    "max_position_embeddings": 32768,
    "mlp_layer_types": None,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build AXK1ForCausalLM, whose published files store the norm of dense layers, too."""
    config = with_expert_defaults(config, DEFAULTS)
    sparse, spec = sparse_types(config), latent_spec(config, ctx)
    spec = with_mixtures(config, spec, corrected_router, sparse)
    behind = replace(spec.names, post_mlp_norm="post_mlp_layernorm")
    layers = tuple(
        replace(layer, names=behind) if sparse(i) else layer for i, layer in enumerate(spec.layers)
    )
    ctx.weights.rename(r"\.mlp\.post_mlp_layernorm\.", ".post_mlp_layernorm.")
    ctx.weights.ignore([r"\.post_mlp_layernorm\.weight$"])
    decoder = DenseDecoder(replace(spec, layers=layers), ctx)
    for name in [name for name in ctx.weights.expected if name.endswith("correction_bias")]:
        ctx.weights.optional(name)  # which published files lack: nothing moves their routers
    return decoder
