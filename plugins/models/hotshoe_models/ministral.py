"""Ministral 3: Mistral's shape, rotated by YaRN, whose queries grow with their position.

Defaults are those of transformers' Ministral3Config.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mistral import DEFAULTS as MISTRAL
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    layer_specs,
    optional_size,
    with_defaults,
    with_rope,
    with_temperature,
)

DEFAULTS = {
    **MISTRAL,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
#: Of a file that does not say how it rotates.
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Ministral3ForCausalLM."""
    config = with_rope(with_defaults(config, DEFAULTS), ROPE)
    window = optional_size(config, "sliding_window")
    types = [FULL if window is None else SLIDING] * config.size("num_hidden_layers")
    layers = with_temperature(config, layer_specs(config, ctx, types, window))
    return DenseDecoder(decoder_spec(config, layers), ctx)
