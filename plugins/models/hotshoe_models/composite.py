"""Models that see or hear, of which the text part is served: that part's own description.

config.json's `text_config` is merged by core; this module finds the description, and the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.base import Model
from hotshoe.models.composites import KEY, TEXT_NAMES
from hotshoe_models.plugin import ARCHITECTURES, CLASSIFIERS
from hotshoe_models.seeing import BEGINNINGS, BY_VERSION, COMPOSITES, FLAT

#: How names of the other parts begin.
OTHERS = (
    r"^(?:model\.|backbone\.)?(?:visual|vision_tower|vision_backbone|vision_model|vision_embedder|vision_encoder|audio|audio_tower|audio_encoder|audio_adapter|embed_vision|embed_audio"
    r"|multi_modal_projector|mm_projector|connector|merger|patch_merge_mlp|vit_large_projector|vit_downsampler2?|vision_adapter|vision_projection"
    r"|projector|vision_projector|aligner|visual_embeddings_table|video_tower|image_tower|vqmodel|generation_\w+|high_res_vision_\w+"
    r"|encoder|layerwise_projectors|spatial_projectors|mlp1|sound_encoder|sound_projection|resampler_model|vit|perceive|patch_merger|talker|code2wav|token2wav"
    r"|acoustic_tokenizer_encoder|semantic_tokenizer_encoder|audio_adaptor|qformer|language_projection|word_timestamp_\w+"
    r"|vision_embed_tokens|visual_tokenizer|vte|vision|vpm|resampler|apm|audio_projection_layer|tts|sam_model|vision_embedding|mlp_AR|audio_projector)\."
    r"|^(?:model\.)?(?:image_newline|view_sep\w+|high_res_vision_alpha|query_tokens)$"
)
WHY = "the parts that see or hear: requests with images or audio are refused"


def build(config: ModelConfig, ctx: BuildContext) -> Model:
    """Build the text part of a composite class.

    Raises:
        CheckpointError: The text part is of another family than those that the class is known for,
            or config.json does not describe one.
    """
    known = COMPOSITES[config.architecture]
    if config.architecture in BY_VERSION:
        return _built(config, ctx, _of_version(config, known))
    text = config.get(KEY, {} if config.architecture in FLAT else None)
    if not isinstance(text, dict):
        raise CheckpointError(
            f"config.json: {KEY} is {text!r}, but {config.architecture} needs an object that "
            "describes its text part"
        )
    family = text.get("model_type", next(iter(known)))
    if not isinstance(family, str) or family not in known:
        raise CheckpointError(
            f"config.json: {KEY}.model_type is {family!r}, but of {config.architecture} only text "
            f"parts of these families are known: {', '.join(known)}"
        )
    return _built(config, ctx, known[family])


def _of_version(config: ModelConfig, known: Mapping[str, str]) -> str:
    """Return the architecture of a text part that config.json tells by a version alone.

    Raises:
        CheckpointError: It is none of those that are known.
    """
    version = config.get("version")
    if str(version) not in known:
        raise CheckpointError(
            f"config.json: version is {version!r}, but of {config.architecture} only these are "
            f"known: {', '.join(known)}; give it with --hf-overrides where the file leaves it out"
        )
    return known[str(version)]


def _built(config: ModelConfig, ctx: BuildContext, name: str) -> Model:
    """Build the text part as one of an architecture."""
    if config.architecture in BEGINNINGS:
        ctx.weights.rename(BEGINNINGS[config.architecture], "")
    for pattern, replacement in TEXT_NAMES:
        ctx.weights.rename(f"^{pattern}", replacement)
    ctx.weights.ignore([OTHERS], WHY)
    # What ends with "Model" has no output matrix, unless it is a composite class.
    own = name if name in CLASSIFIERS else config.architecture.removesuffix("Model")
    config = replace(config, architecture=own)
    return cast("Model", resolve_lazy(ARCHITECTURES[name])(config, ctx))
