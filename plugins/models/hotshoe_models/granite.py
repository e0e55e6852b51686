"""Granite 3: Llama's shape with factors on embeddings, scores, residuals and logits.

Defaults are those of transformers' GraniteConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.values import layer_specs, number, with_defaults

DEFAULTS = {
    **SHAPE,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = llama_spec(
        config,
        layer_specs(config, ctx),
        attention_scale=number(config, "attention_multiplier"),
        embedding_scale=number(config, "embedding_multiplier"),
        residual_scale=number(config, "residual_multiplier"),
        logits_divisor=number(config, "logits_scaling"),
    )
    return DenseDecoder(spec, ctx)
