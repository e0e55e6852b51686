"""StableLM 2 and 3B: Llama's shape with layer norms, a quarter of each head rotated. StableLM 2 12B
has layer norms of each head's q and k.

Defaults are those of transformers' StableLmConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, number, with_defaults

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "partial_rotary_factor": 0.25,
    "use_qkv_bias": False,
    "qk_layernorm": False,
    "use_parallel_residual": False,
}
NAMES = WeightNames(layer_qk_norm="own")
QK_NORMS = ("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build StableLmForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    names = replace(NAMES, qk_norm=QK_NORMS) if flag(config, "qk_layernorm") else NAMES
    parallel = flag(config, "use_parallel_residual")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, partial_rotary=True),
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        parallel=parallel,
        qkv_bias=flag(config, "use_qkv_bias"),
        names=replace(names, mlp_norm=None) if parallel else names,
    )
    return DenseDecoder(spec, ctx)
