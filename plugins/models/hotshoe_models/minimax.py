"""MiniMax M2: norms of q and k over all heads, a part of each head rotated, a sigmoid router.

Defaults are those of transformers' MiniMaxM2Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import refuse_further
from hotshoe_models.mixtral import NAMES as EXPERTS
from hotshoe_models.mixtral import STACKED
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.olmoe import NAMES
from hotshoe_models.values import decoder_spec, head_dim, layer_specs, refuse

DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 196608,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
}
DEFAULT_THETA = 5_000_000.0
#: Layers that predict further tokens are not used.
UNUSED = (*NAMES.unused, r"^model\.mtp", r"^mtp")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiniMaxM2ForCausalLM."""
    config = with_rotary_dim(with_expert_defaults(config, DEFAULTS))
    experts = mixture(
        config,
        RouterSpec("sigmoid", renormalize=True, correction=True),
        experts="num_local_experts",
        size="intermediate_size",
        names=EXPERTS,
    )
    layers = layer_specs(config, ctx, partial_rotary=True, default_theta=DEFAULT_THETA)
    layers = with_experts(layers, experts, lambda i: True)
    ctx.weights.rename(*STACKED)
    refuse_further(ctx, "no published code says what MiniMax M2's num_mtp_modules are")
    return DenseDecoder(decoder_spec(config, layers, names=replace(NAMES, unused=UNUSED)), ctx)


def with_rotary_dim(config: ModelConfig) -> ModelConfig:
    """Say the rotated part of a head as other families do: older files count its channels."""
    if config.get("rotary_dim") is None or config.get("partial_rotary_factor") is not None:
        return config
    dim, rotated = head_dim(config), config.size("rotary_dim")
    if rotated > dim:
        raise refuse(config, "rotary_dim", f"has {dim} channels per head")
    return replace(config, values={**config.values, "partial_rotary_factor": rotated / dim})
