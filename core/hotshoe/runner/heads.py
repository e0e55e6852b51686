"""The head of a model that makes drafts: who asks for one, whether a model has it, and weights that
lie beside the model's."""

from __future__ import annotations

import torch

from hotshoe.config import MTP, EngineConfig
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext
from hotshoe.loader import Target, load_weights
from hotshoe.models import ModelConfig
from hotshoe.models.base import DraftHead, DraftingModel, LevelHead, Model, TreeHead
from hotshoe.types.trees import NAME as TREE_NAME
from hotshoe.types.trees import ROOT, NoTreesError


def wanted_further(config: EngineConfig) -> int:
    """Return how many layers of the model's own checkpoint that predict further tokens are used, at
    most: one for each draft of a chain, and one for trees."""
    options = config.speculative_config or {}
    if options.get("method") != MTP or "model" in options:
        return 0
    return 1 if config.draft_tree is not None else config.num_speculative_tokens


def head_of(model: Model, ctx: BuildContext, config: ModelConfig) -> DraftHead | None:
    """Return what makes a model's drafts; None where nothing of the kind was asked for, and in
    stages before the last.

    Raises:
        ConfigError: The model has none.
    """
    if not ctx.stage.is_last or not (ctx.further or ctx.beside):
        return None
    head = model.draft_head if isinstance(model, DraftingModel) else None
    if head is None:
        raise ConfigError(
            f"speculative_config: method {MTP} needs layers that predict further tokens, and "
            f"{config.architecture} in {config.path} has none that Hotshoe can use; use another "
            "method, such as auto or draft_model"
        )
    check_tree(head, ctx)
    return head


def check_tree(head: DraftHead, ctx: BuildContext) -> None:
    """Refuse a tree that a head does not make, or that caches have no places for.

    Raises:
        NoTreesError: It makes chains, or a cache has no places.
        ConfigError: The tree is larger than a sequence may be.
    """
    if ctx.tree is None:
        return
    if not isinstance(head, TreeHead | LevelHead):
        raise NoTreesError("the layer that makes the drafts makes chains alone")
    inner = len(set(ctx.tree.parents) - {ROOT})
    if isinstance(head, LevelHead) and inner > ctx.max_model_len:
        raise ConfigError(
            f"{TREE_NAME} has {inner} nodes with children, which need a place each, but "
            f"max_model_len is {ctx.max_model_len}; leave nodes out"
        )
    kinds = sorted({layer.cache_spec.kind for layer in ctx.cache_layers} - {"full"})
    if kinds:
        raise NoTreesError(
            f"the model has caches of kind {' and '.join(kinds)}, which have no places for the "
            "nodes of a tree"
        )


def load_beside(ctx: BuildContext, config: EngineConfig) -> None:
    """Load what lies in other directories.

    Raises:
        CheckpointError: As for `load_weights`, with the directory.
    """
    load_format, seed, check = config.load_format, config.seed, config.check_weights
    target = Target(ctx.device)
    for table, place in ctx.beside:
        try:
            load_weights(table, place, load_format, ctx.torch_dtype, seed, target, check)
        except CheckpointError as error:
            raise CheckpointError(f"speculative_config.model {place}: {error}") from error


def on_device(ctx: BuildContext) -> list[torch.UntypedStorage]:
    """Return the memory of all tables' weights, as `WeightTable.on_device`."""
    tables = [ctx.weights, *(table for table, _ in ctx.beside)]
    return [storage for table in tables for storage in table.on_device()]
