"""Qwen3.5, dense and with experts (text): Qwen3-Next's layers over matrices stored apart.

Checkpoints have names of a model that sees, too. Defaults are those of transformers'
Qwen3_5TextConfig and Qwen3_5MoeTextConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.qwen_moe import NAMES
from hotshoe_models.qwen_next import APART, drafting, gated_spec, mixed_layers
from hotshoe_models.qwen_next import DEFAULTS as QWEN_NEXT
from hotshoe_models.spec import DecoderSpec, LayerSpec, Projection
from hotshoe_models.values import with_defaults

SHARED = {**QWEN_NEXT, "vocab_size": 248320}
DENSE_DEFAULTS = {
    **SHARED,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
MOE_DEFAULTS = {**SHARED, "num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8}
PROJECTIONS = (
    APART,
    Projection((("in_proj_b", ("beta",)), ("in_proj_a", ("decay",)))),
)
#: Key of the number of layers that predict further tokens.
COUNT = "mtp_num_hidden_layers"


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen3_5ForCausalLM."""
    return drafting(config, ctx, describe(config, ctx), COUNT)


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen3_5MoeForCausalLM."""
    return drafting(config, ctx, describe_moe(config, ctx), COUNT)


def describe(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe Qwen3_5ForCausalLM."""
    config = with_defaults(config, DENSE_DEFAULTS)
    return _described(config, ctx, mixed_layers(config, ctx))


def describe_moe(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe Qwen3_5MoeForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    shared = config.size("shared_expert_intermediate_size")
    router = RouterSpec(renormalize=True)
    experts = mixture(config, router, shared_size=shared, shared_gated=True, names=NAMES)
    return _described(config, ctx, with_experts(mixed_layers(config, ctx), experts, lambda i: True))


def _described(
    config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...]
) -> DecoderSpec:
    ctx.weights.rename(r"^model\.language_model\.", "model.")
    return gated_spec(config, ctx, layers, PROJECTIONS)
