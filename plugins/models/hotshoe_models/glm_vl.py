"""Text parts of GLM-4.1V, 4.5V and 4.6V: GLM-4's layers, dense, and GLM-4.5's with experts.

Positions of images have several coordinates; of text all are the same. Defaults are those of
transformers' Glm4vTextConfig and Glm4vMoeTextConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models import glm, glm_moe
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.glm import DEFAULTS as GLM4
from hotshoe_models.glm_moe import GLM_DEFAULTS
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.values import head_dim, with_defaults

OTHERS = {"head_dim", "attention_bias", "partial_rotary_factor"}
DEFAULTS = {
    **{key: value for key, value in GLM4.items() if key not in OTHERS},
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
MOE_DEFAULTS = {
    **{key: value for key, value in GLM_DEFAULTS.items() if key != "use_qk_norm"},
    "vocab_size": 151424,
    "max_position_embeddings": 65536,
    "attention_bias": True,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Glm4vForConditionalGeneration."""
    config = with_defaults(config, DEFAULTS)
    size = {"head_dim": head_dim(config)}
    return glm.build_glm4(replace(config, values={**config.values, **size}), ctx)


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Glm4vMoeForConditionalGeneration."""
    return glm_moe.build_glm(with_expert_defaults(config, MOE_DEFAULTS), ctx)
