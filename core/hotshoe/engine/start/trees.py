"""Trees of drafts: whether a model takes them, found before anything is loaded. Else chains do.

A model says so itself while it is built (`NoTreesError`), so it is built on paper first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hotshoe.config import EngineConfig
from hotshoe.engine.start.paper import PaperSelector
from hotshoe.platform import Change
from hotshoe.types.trees import TREE, DraftTree, NoTreesError

if TYPE_CHECKING:
    from hotshoe.engine.start.setup import EngineSetup

FIELD = "speculative_config"


def settle_trees(setup: EngineSetup) -> EngineSetup:
    """Return a setup whose drafts are chains where a tree is asked for and cannot be.

    A chain is as long as the tree is deep. A worker of the platform's own sees what was asked for.

    Raises:
        UserError: The model cannot be built as asked.
    """
    config = setup.config
    tree = config.draft_tree
    if tree is None or (why := _hindrance(setup)) is None:
        return setup
    change = Change(FIELD, _chained(config, tree), f"chains, not trees: {why}")
    return replace(setup, config=config.resolve_changes([change]), changes=(*setup.changes, change))


def chained(asked: EngineConfig, setup: EngineSetup) -> str:
    """Return why drafts are chains where the user asks for a tree; empty if they are none."""
    if asked.draft_tree is None or setup.config.draft_tree is not None:
        return ""
    return next(change.reason for change in reversed(setup.changes) if change.field == FIELD)


def _chained(config: EngineConfig, tree: DraftTree) -> dict[str, object]:
    options = {k: v for k, v in (config.speculative_config or {}).items() if k != TREE}
    return {**options, "num_speculative_tokens": tree.depth}


def _hindrance(setup: EngineSetup) -> str | None:
    """Return why the model takes no trees; None if it takes them."""
    stages = setup.config.pipeline_parallel_size
    if stages > 1:
        return f"with pipeline_parallel_size {stages}, stages before the last know no path"
    if setup.platform.create_worker(setup.config) is not None:
        return None
    try:
        replace(setup, selector=PaperSelector(setup, may_lack=True)).torch_worker().build()
    except NoTreesError as error:
        return str(error)
    return None
