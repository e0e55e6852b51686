"""Youtu-LLM: DeepSeek-V3's attention in every layer, and no experts.

Defaults are those of transformers' YoutuConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import SHARED, latent_spec
from hotshoe_models.values import with_defaults

DEFAULTS = {
    **SHARED,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_interleave": True,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build YoutuForCausalLM."""
    return DenseDecoder(latent_spec(with_defaults(config, DEFAULTS), ctx), ctx)
