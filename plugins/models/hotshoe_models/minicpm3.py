"""MiniCPM 3: latent attention in every layer, factors on embeddings, residuals and logits.

Defaults are those of transformers' MiniCPM3Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import latent_spec
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.values import flag, number, optional_number, optional_size, with_defaults

DEFAULTS = {
    **LLAMA,
    "vocab_size": 73448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": None,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiniCPM3ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    size, layers = config.size("hidden_size"), config.size("num_hidden_layers")
    values = optional_size(config, "v_head_dim") or size // config.size("num_attention_heads")
    own = {"v_head_dim": values, "rope_interleave": False}
    depth = optional_number(config, "scale_depth")
    spec = replace(
        latent_spec(replace(config, values={**config.values, **own}), ctx),
        mlp_bias=flag(config, "mlp_bias"),
        embedding_scale=number(config, "scale_emb"),
        residual_scale=1.0 if depth is None else depth * layers**-0.5,
        logits_divisor=size / (optional_size(config, "dim_model_base") or size),
    )
    return DenseDecoder(spec, ctx)
