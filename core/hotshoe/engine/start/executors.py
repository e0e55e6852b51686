"""Executors make the worker of an engine from its setup: core's own, and how one is chosen.

Those of plugins come through hook `hotshoe_executors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.executor import Worker
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin

if TYPE_CHECKING:
    from hotshoe.engine.start.setup import EngineSetup

HOOK = "hotshoe_executors"
OWN = {
    "mp": "hotshoe.engine.ranks.executor:processes",
    "uni": "hotshoe.engine.start.executors:in_process",
}


class Executor(Protocol):
    """Makes a worker; hook `hotshoe_executors` names it."""

    def __call__(self, setup: EngineSetup) -> Worker:
        """Make what computes steps; nothing is started before `Worker.load`.

        Raises:
            ConfigError: It cannot run an engine that is configured so.
        """
        ...


def ranks_here(config: EngineConfig) -> int:
    """Return how many ranks this host has; where an executor of a plugin runs them, one."""
    if config.distributed_executor_backend not in (None, *OWN):
        return 1
    return max(config.num_ranks // config.nnodes, 1)


def check_executor(plugins: PluginManager, name: str | None) -> None:
    """Refuse the name of an executor that nobody offers.

    Raises:
        PluginError: With the choices.
    """
    if name is not None:
        plugins.pick("executor", name, HOOK, OWN)


def make_worker(setup: EngineSetup) -> Worker:
    """Make the worker by the executor that a resolved configuration names.

    Raises:
        ConfigError: The executor cannot run what is configured.
        PluginError: The executor is unknown, or defective.
    """
    name = setup.config.distributed_executor_backend
    if name in OWN:
        return cast(Worker, resolve_lazy(OWN[name])(setup))
    executor = setup.plugins.pick("executor", name, HOOK, OWN)
    with blaming_plugin(setup.plugins, HOOK, name):
        worker = resolve_lazy(executor)(setup)
        if not isinstance(worker, Worker):
            raise TypeError(f"it made {type(worker).__name__}, which is no Worker")
    return worker


def in_process(setup: EngineSetup) -> Worker:
    """Compute in this process: executor "uni".

    Raises:
        ConfigError: There are several ranks.
    """
    if setup.config.num_ranks > 1:
        raise ConfigError(
            f"distributed_executor_backend uni is one process, but {setup.config.num_ranks} ranks "
            "are asked for; use mp, or leave it out"
        )
    return setup.own_worker() or setup.torch_worker()
