"""Executor "ray": a placement group has one bundle for each rank, and each bundle an agent.

A bundle has a CPU, and what the platform says that Ray counts of a rank's device. Ray hides from an
agent the devices of others, so each rank is alone on what it sees.

Ray places the agents, starts them, and says why one has gone. They connect to the engine as those
of several hosts do, so plans and results do not pass through Ray. What ranks print goes to Ray's
logs, which it shows where the engine runs.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hotshoe.engine.ranks.agent import join_engine
from hotshoe.engine.ranks.agents import AgentGroup
from hotshoe.engine.ranks.executor import ranked
from hotshoe.engine.start.setup import EngineSetup
from hotshoe.errors import ConfigError, EngineError
from hotshoe.executor import Worker

#: How long Ray may take to find room for all bundles.
PLACE_S = 60.0


class RayGroup(AgentGroup):
    """See `hotshoe.executor.RankGroup`.

    Args:
        ray: The library, connected to a cluster.
        size: Ranks.
        devices: What a rank needs beside a CPU; see `Platform.cluster_resources`.
        host: Address of this host, at which nodes of the cluster reach it.
        limit_s: How long all agents may take to come.
    """

    def __init__(
        self, ray: Any, size: int, devices: Mapping[str, float], host: str, limit_s: float
    ) -> None:
        secret = secrets.token_bytes(32)
        self._cluster = Cluster(ray, size, devices)
        launch = partial(self._cluster.launch, host, secret, limit_s)
        super().__init__([1] * size, secret, (host, 0), limit_s, launch, alone=bool(devices))

    def stop(self, leave_s: float = 0.0) -> None:
        super().stop(leave_s)
        self._cluster.close()


class Cluster:
    """The bundles and agents of one engine.

    Args:
        ray: The library.
        size: Ranks.
        devices: What a rank needs beside a CPU.
    """

    def __init__(self, ray: Any, size: int, devices: Mapping[str, float]) -> None:
        self._ray, self._size = ray, size
        self._bundle = {"CPU": 1.0, **devices}
        self._group: Any = None
        self._agents: list[Any] = []
        self._runs: list[Any] = []

    def launch(self, host: str, secret: bytes, limit_s: float, port: int) -> Callable[[int], str]:
        """Have Ray start an agent for each rank; return what says why one has gone.

        Raises:
            EngineError: The cluster has no room.
        """
        ray = self._ray
        placing = importlib.import_module("ray.util.placement_group")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        bundles = [dict(self._bundle) for _ in range(self._size)]
        self._group = placing.placement_group(bundles, strategy="PACK")
        if not self._group.wait(PLACE_S):
            self.close()
            raise EngineError(self._no_room(ray.available_resources()))
        remote = ray.remote(max_restarts=0, **_options(self._bundle))(RayAgent)
        for node in range(self._size):
            strategy = strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=node
            )
            agent = remote.options(scheduling_strategy=strategy).remote()
            self._agents.append(agent)
            self._runs.append(agent.run.remote(host, port, secret, node, limit_s))
        return self.why

    def _no_room(self, free: Mapping[str, float]) -> str:
        wanted = " and ".join(f"{count:g} {name}" for name, count in self._bundle.items())
        there = ", ".join(f"{free.get(name, 0):g} {name}" for name in self._bundle)
        return (
            f"the Ray cluster found no room for {self._size} ranks of {wanted} each within "
            f"{PLACE_S:g} s; free are {there}; add nodes, or lower tensor_parallel_size * "
            "pipeline_parallel_size"
        )

    def why(self, node: int) -> str:
        """Return why an agent has gone; "" if it runs, or nobody knows yet."""
        if node >= len(self._runs):
            return ""
        done, _ = self._ray.wait([self._runs[node]], timeout=0)
        try:
            self._ray.get(done)
        except Exception as error:  # Ray's own, or what the agent failed with
            return str(error).strip().partition("\n")[0]
        return "its agent has ended" if done else ""

    def close(self) -> None:
        """Give the bundles back, and end what is in them."""
        if self._group is None:
            return
        for agent in self._agents:
            self._ray.kill(agent)
        importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)
        self._group, self._agents, self._runs = None, [], []


def _options(bundle: Mapping[str, float]) -> dict[str, Any]:
    """Return what makes an actor take a whole bundle, as Ray's options spell it."""
    others = {name: count for name, count in bundle.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "resources": others}


class RayAgent:
    """The agent of one rank, as an actor."""

    def run(self, host: str, port: int, secret: bytes, node: int, limit_s: float) -> None:
        """Serve the engine until it ends."""
        join_engine(host, port, secret, node, limit_s)


def create(setup: EngineSetup) -> Worker:
    """Compute on the Ray cluster that this process is connected to, or that Ray finds.

    Raises:
        ConfigError: Ray is not installed, or finds no cluster.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"distributed_executor_backend ray needs the package ray ({error}); "
            "pip install 'hotshoe-executor-ray[ray]'"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address="auto")
        except ConnectionError as error:
            raise ConfigError(f"no Ray cluster: {error}; start one: ray start --head") from None
    host = ray.util.get_node_ip_address()
    config, devices = setup.config, setup.platform.cluster_resources
    return ranked(setup, RayGroup(ray, config.num_ranks, devices, host, config.load_timeout_s))
