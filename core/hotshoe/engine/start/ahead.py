"""Processes that import while their owner gets ready to have them: engines and ranks.

Imports are the largest part of a second start, and wait for nothing that an owner finds out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from hotshoe.config import EngineConfig
from hotshoe.engine.wire.children import ENGINE_COMMAND, RANK_COMMAND, started_ahead

#: Imports of an engine with core's own worker, beside the module that its process runs.
IMPORTS = ("hotshoe.runner.projected", "hotshoe.runner.worker")
#: Core's own platform (`hotshoe.builtin.null`), which computes nothing and imports little.
LIGHT = "null"


def engine_ahead(config: EngineConfig) -> AbstractContextManager[None]:
    """Start the process that will be the engine, if it is going to import much."""
    if config.platform == LIGHT:
        return nullcontext()
    return started_ahead(ENGINE_COMMAND, IMPORTS)


def ranks_ahead(config: EngineConfig) -> AbstractContextManager[None]:
    """Start the processes that will be the ranks of this host, if there are several."""
    own = config.distributed_executor_backend in (None, "mp")
    if config.num_ranks == 1 or not own or config.platform == LIGHT:
        return nullcontext()
    return started_ahead(RANK_COMMAND, IMPORTS, max(config.num_ranks // config.nnodes, 1))
