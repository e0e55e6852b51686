"""GLM-5: DeepSeek V3.2's shape, in which layers may share the choice of one before them.

Defaults are those of transformers' GlmMoeDsaConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek_v32 import DEFAULTS as V32_DEFAULTS
from hotshoe_models.deepseek_v32 import sparse_decoder
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.values import count, refuse

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
LETTERS = {"F": "full", "S": "shared"}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GlmMoeDsaForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    return sparse_decoder(config, ctx, _mixers(config), interleaved=True)


def _mixers(config: ModelConfig) -> list[str]:
    """Return each layer's mixer: a list says it, else a pattern, else a frequency."""
    layers = config.size("num_hidden_layers")
    named = [key for key in ("indexer_types", "index_topk_pattern") if config.get(key) is not None]
    every = max(count(config, "index_topk_freq"), 1) if "index_topk_freq" in config.values else 1
    skipped = "index_skip_topk_offset"
    first = count(config, skipped) if skipped in config.values else 2
    types = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(layers)]
    if named:
        given = config.get(named[0])
        known = LETTERS | {kind: kind for kind in MIXERS}
        given = given if isinstance(given, (list, str)) else []
        types = [known.get(kind, "") if isinstance(kind, str) else "" for kind in given]
    if len(types) != layers or "" in types:
        raise refuse(config, named[0], f"needs full or shared for each of {layers} layers")
    if types[0] != "full":
        raise refuse(config, (*named, skipped)[0], "needs an indexer in its first layer")
    return [MIXERS[kind] for kind in types]
