"""Processes that import while their owner gets ready to have them: engines and ranks.

Imports are the largest part of a second start, and wait for nothing that an owner finds out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from hotshoe.config import EngineConfig
from hotshoe.engine.wire.children import ENGINE_COMMAND, RANK_COMMAND, started_ahead

#: What an engine of core's own worker imports beside the module that its process runs.
IMPORTS = ("hotshoe.runner.projected", "hotshoe.runner.worker")
#: Platforms that compute nothing, and import little.
LIGHT = ("null",)


def engine_ahead(config: EngineConfig) -> AbstractContextManager[None]:
    """Start what the engine process will be, if that is going to import much."""
    if config.platform in LIGHT:
        return nullcontext()
    return started_ahead(ENGINE_COMMAND, IMPORTS)


def ranks_ahead(config: EngineConfig) -> AbstractContextManager[None]:
    """Start what the ranks of this host will be, if there are several."""
    own = config.distributed_executor_backend in (None, "mp")
    if config.num_ranks == 1 or not own or config.platform in LIGHT:
        return nullcontext()
    return started_ahead(RANK_COMMAND, IMPORTS, max(config.num_ranks // config.nnodes, 1))
