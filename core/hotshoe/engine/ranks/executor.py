"""Executor "mp": the ranks are processes, of this host or of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.engine.ranks.parallel import ParallelWorker
from hotshoe.engine.ranks.processes import ProcessGroup
from hotshoe.executor import RankGroup, Worker

if TYPE_CHECKING:
    from hotshoe.engine.start.setup import EngineSetup


def processes(setup: EngineSetup) -> Worker:
    """Compute in processes, one for each rank, of this host or of `nnodes`.

    Raises:
        ConfigError: It cannot be on several hosts as configured.
    """
    if setup.config.nnodes > 1:
        from hotshoe.engine.ranks.agents import on_hosts

        return ranked(setup, on_hosts(setup.config))
    return ranked(setup, ProcessGroup(setup.config.num_ranks))


def ranked(setup: EngineSetup, group: RankGroup) -> Worker:
    """Return a worker whose ranks are those of a group; for executors of plugins."""
    return ParallelWorker(
        setup.config,
        setup.model_config.eos_token_ids,
        [(record.name, record.version) for record in setup.plugins.records],
        group,
        slots=setup.selector.slots,
    )
