"""GLM-5: DeepSeek V3.2's shape, in which layers may share the choice of one before them.

Defaults are those of transformers' GlmMoeDsaConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek_v32 import DEFAULTS as V32_DEFAULTS
from hotshoe_models.deepseek_v32 import indexer_types, sparse_decoder
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.values import refuse

DEFAULTS = {
    **V32_DEFAULTS,
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "index_n_heads": 32,
    "indexer_types": None,
}
MIXERS = {"full": "indexed", "shared": "shared"}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GlmMoeDsaForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    return sparse_decoder(config, ctx, indexed_mixers(config), interleaved=True)


def indexed_mixers(config: ModelConfig) -> list[str]:
    """Return each layer's mixer."""
    types, key = indexer_types(config)
    if types[0] != "full":
        raise refuse(config, key, "needs an indexer in its first layer")
    return [MIXERS[kind] for kind in types]
