"""Names that checkpoints have for weights whose modules transformers calls otherwise."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext


def rename_weights(ctx: BuildContext, model: PreTrainedModel) -> None:
    """Let names of a checkpoint stand for those of modules, as transformers' table says.

    Raises:
        CheckpointError: The checkpoint keeps weights in other shapes, such as expert by expert.
    """
    for transform in get_model_conversion_mapping(model, add_legacy=False):
        sources, targets = transform.source_patterns, transform.target_patterns
        if not isinstance(transform, WeightRenaming):
            raise CheckpointError(
                f"{type(model).__name__} stacks the checkpoint's {', '.join(sources)} into "
                f"{', '.join(targets)}, which transformers' code over the engine's cache does not "
                "serve; choose a model that `hotshoe plugins` lists"
            )
        for source, target in zip(sources, targets, strict=True):
            ctx.weights.rename(source, target)
