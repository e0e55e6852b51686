"""The head of a model that makes drafts: who asks for one, and whether a model has it."""

from __future__ import annotations

from hotshoe.config import MTP, EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.models.base import DraftHead, DraftingModel, Model


def wants_further(config: EngineConfig) -> bool:
    """Tell whether layers of the checkpoint that predict further tokens are used."""
    return (config.speculative_config or {}).get("method") == MTP


def head_of(model: Model, ctx: BuildContext, config: ModelConfig) -> DraftHead | None:
    """Return what makes a model's drafts; None where nothing of the kind was asked for.

    Raises:
        ConfigError: The model has none.
    """
    if not ctx.further:
        return None
    head = model.draft_head if isinstance(model, DraftingModel) else None
    if head is None:
        raise ConfigError(
            f"speculative_config: method {MTP} needs layers that predict further tokens, and "
            f"{config.architecture} in {config.path} has none that Hotshoe can use; use another "
            "method, such as auto or draft_model"
        )
    return head
