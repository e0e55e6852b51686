"""PLM 1.8B: DeepSeek's latent attention with q made of hidden states, and MLPs of squared ReLU
without gates.

Source: Deng et al. 2025, arXiv:2503.12167, and the code beside its checkpoint, whose configuration
class has these defaults.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.arcee import NAMES
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import SHARED, latent_spec
from hotshoe_models.values import PLAIN_ACTIVATIONS, activation, with_defaults

DEFAULTS = {
    **SHARED,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": None,
    "q_lora_rank": None,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_theta": 100_000.0,
    "rope_interleave": True,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PLMForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    act = activation(config, "hidden_act", PLAIN_ACTIVATIONS)
    return DenseDecoder(latent_spec(config, ctx, activation=act, gated=False, names=NAMES), ctx)
