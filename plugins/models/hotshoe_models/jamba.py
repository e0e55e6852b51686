"""Jamba: Mamba-1 blocks, every eighth replaced by attention that rotates nothing, and experts in
every other layer.

Defaults are those of transformers' JambaConfig.
"""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.selective import selective_block
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import count, decoder_spec, flag, number, refuse

DEFAULTS = {
    "vocab_size": 65536,
    "tie_word_embeddings": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
KEYS = {
    "state": "mamba_d_state",
    "conv": "mamba_d_conv",
    "expand": "mamba_expand",
    "rank": "mamba_dt_rank",
}
NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")
NAMES = WeightNames(
    final_norm="model.final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
EXPERTS = MoeNames(
    router="feed_forward.router",
    gate_up=("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
    down="feed_forward.experts.{}.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build JambaForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    attending, sparse = _every(config, "attn"), _every(config, "expert")
    layers = tuple(
        LayerSpec(None, mixer="attention" if i in attending else "selective")
        for i in range(config.size("num_hidden_layers"))
    )
    if config.size("num_experts") > 1:
        experts = mixture(config, RouterSpec(), size="intermediate_size", names=EXPERTS)
        layers = with_experts(layers, experts, lambda i: i in sparse)
    block = selective_block(
        config,
        ctx,
        KEYS,
        name="mamba",
        norm_eps=number(config, "rms_norm_eps"),
        norms=NORMS,
        bias=flag(config, "mamba_proj_bias"),
        conv_bias=flag(config, "mamba_conv_bias"),
    )
    return DenseDecoder(decoder_spec(config, layers, selective=block, names=NAMES), ctx)


def _every(config: ModelConfig, what: str) -> range:
    """Return which layers are of a kind that comes once in a period."""
    period, offset = f"{what}_layer_period", f"{what}_layer_offset"
    every, first = config.size(period), count(config, offset)
    if first >= every:
        raise refuse(config, offset, f"needs a number below {every}, as {period} says")
    return range(first, config.size("num_hidden_layers"), every)
