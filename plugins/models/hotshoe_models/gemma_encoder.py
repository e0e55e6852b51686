"""EmbeddingGemma: Gemma 3 that attends in both directions, in windows of both sides.

Source: Vera et al. 2025, arXiv:2509.20354.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bidirectional import as_encoder
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gemma import gemma3_spec
from hotshoe_models.values import refuse

BOTH = "use_bidirectional_attention"


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Gemma3TextModel."""
    if config.get(BOTH) is not True:
        raise refuse(config, BOTH, "is served where it is true")
    spec = gemma3_spec(replace(config, values={**config.values, BOTH: False}), ctx)
    layers = tuple(
        replace(layer, window=layer.window and layer.window // 2) for layer in spec.layers
    )
    return as_encoder(replace(spec, layers=layers), ctx)
