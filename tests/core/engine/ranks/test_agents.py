"""Counting ranks of two nodes, whose agents are threads here: one engine, and one end for all."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks import agent
from hotshoe.engine.ranks.agent import Agent, join_engine
from hotshoe.engine.ranks.agents import AgentGroup, on_hosts
from hotshoe.engine.ranks.parallel import ParallelWorker
from hotshoe.engine.ranks.processes import ProcessGroup
from hotshoe.errors import ConfigError, EngineDeadError, EngineError
from hotshoe.executor import Seat
from hotshoe.types import NewRow, SamplingParams, StepPlan

SECRET, HOST = b"0123456789abcdef", "127.0.0.1"
COMMAND = [sys.executable, str(Path(__file__).parents[1] / "faulty_rank.py")]
DIE = 1


class Cluster:
    """Starts agents as threads, and keeps their engines' groups."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.agents: list[Agent] = []
        self.why: dict[int, str] = {}
        self.hosts: dict[int, str] = {}

    def launch(self, nodes: list[int], port: int) -> Callable[[int], str]:
        for node in nodes:
            self.join(node, port)
        return lambda node: self.why.get(node, "")

    def join(self, node: int, port: int, secret: bytes = SECRET) -> None:
        def run() -> None:
            try:
                join_engine(HOST, port, secret, node, 20)
            except EngineError as error:
                self.why[-1] = str(error)

        self.threads.append(threading.Thread(target=run, name=self.hosts.get(node, "a")))
        self.threads[-1].start()

    def group(self, counts: list[int], nodes: list[int], limit_s: float = 30) -> AgentGroup:
        return AgentGroup(counts, SECRET, (HOST, 0), limit_s, partial(self.launch, nodes))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(agent, "ProcessGroup", partial(ProcessGroup, command=COMMAND))
    made = Cluster()

    class Kept(Agent):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.agents.append(self)

    monkeypatch.setattr(agent, "Agent", Kept)
    yield made
    for thread in made.threads:
        thread.join(20)
        assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []


def plan(number: int, first: int) -> StepPlan:
    row = NewRow(0, [first, 9], 2, 0, [[0]], SamplingParams(), 0)
    return StepPlan(number, [row], [0], [2])


def compute(worker: ParallelWorker, first: int) -> None:
    """Compute steps until a failure shows."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        worker.execute(plan(0, first)).result()


def worker_of(group: AgentGroup, **options: object) -> ParallelWorker:
    config = EngineConfig(tensor_parallel_size=group.size, max_num_seqs=8, **options)
    return ParallelWorker(config, (), [], group)


def test_ranks_of_two_nodes_compute_together(cluster: Cluster) -> None:
    worker = worker_of(cluster.group([1, 2], [1, 0]))
    assert worker.load().report["rank"] == [0, 1, 2]
    worker.allocate_cache([3])
    assert worker.execute(plan(0, 0)).result().tokens == [[10]]
    assert worker._group.name(2) == "node 1 at 127.0.0.1"
    worker.close()
    worker.close()


def test_a_rank_that_dies_is_named_with_its_end(cluster: Cluster) -> None:
    worker = worker_of(cluster.group([1, 1], [0, 1]), hf_overrides={"faulty": 1})
    worker.load()
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 was killed \(SIGKILL"):
        compute(worker, DIE)


def test_a_node_that_is_lost_ends_all(cluster: Cluster) -> None:
    worker = worker_of(cluster.group([1, 1], [0, 1]))
    worker.load()
    [lost] = [a for a in cluster.agents if a._first_rank == 1]
    begin = time.monotonic()
    lost._connection._sock.shutdown(2)
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 went with node 1 at 127\.0\.0\.1; its"):
        compute(worker, 0)
    assert time.monotonic() - begin < 5


def test_who_does_not_know_the_secret_is_sent_away(cluster: Cluster, caplog) -> None:
    def launch(port: int) -> Callable[[int], str]:
        cluster.join(1, port, b"another secret of another cluster")
        cluster.join(0, port)
        cluster.join(1, port)
        return lambda node: ""

    group = AgentGroup([1, 1], SECRET, (HOST, 0), 30, launch)
    worker = worker_of(group)
    worker.load()
    worker.close()
    cluster.threads[0].join(20)
    assert -1 in cluster.why  # it hears why, or sees the connection end
    assert "sent away who came from 127.0.0.1" in caplog.text


def test_numbers_that_are_none_or_taken_are_sent_away(cluster: Cluster, caplog) -> None:
    def launch(port: int) -> Callable[[int], str]:
        for node in (5, 0, 0, 1):
            cluster.join(node, port)
            time.sleep(0.2)  # who comes last is let in last
        return lambda node: ""

    worker = worker_of(AgentGroup([1, 1], SECRET, (HOST, 0), 30, launch))
    worker.load()
    worker.close()
    assert "its number 5 is taken, or none" in caplog.text
    assert "its number 0 is taken, or none" in caplog.text


def test_a_node_that_does_not_come_is_named(cluster: Cluster) -> None:
    worker = worker_of(cluster.group([1, 1], [0], limit_s=0.5))
    with pytest.raises(
        EngineError, match=r"no word of node 1 of 2 within 0.5 s; run `hotshoe join"
    ):
        worker.load()


def test_a_node_whose_launch_failed_is_not_waited_for(cluster: Cluster) -> None:
    cluster.why[1] = "no room in the cluster"
    worker = worker_of(cluster.group([1, 1], [0]))
    with pytest.raises(EngineError, match="node 1 of 2 cannot start: no room in the cluster"):
        worker.load()


def test_a_port_that_is_taken_is_said(cluster: Cluster) -> None:
    import socket

    with socket.create_server((HOST, 0)) as taken:
        place = taken.getsockname()
        group = AgentGroup([1], SECRET, place, 1, lambda port: lambda node: "")
        with pytest.raises(EngineError, match=r"nobody can listen at .*--master-port"):
            group.start(lambda seat: b"")
        group.stop()


@pytest.mark.parametrize("same", [True, False])
def test_seats_say_who_is_on_one_host(cluster: Cluster, monkeypatch, same: bool) -> None:
    """Ranks of one host meet in the folder of one agent, others at the first one's address."""
    cluster.hosts[2] = "a" if same else "b"
    monkeypatch.setattr(agent, "host_identity", lambda: threading.current_thread().name)
    seats: list[Seat] = []
    group = cluster.group([1, 1, 2], [0, 1, 2])

    def first(seat: Seat) -> bytes:
        seats.append(seat)
        return b"nothing that a rank understands"

    group.start(first)
    group.stop()
    assert [seat.rank for seat in seats] == [0, 1, 2, 3]
    if same:
        assert [seat.part for seat in seats] == [(0, 4), (1, 4), (2, 4), (3, 4)]
        assert {(seat.address, seat.hosts) for seat in seats} == {("", ())}
        assert len({seat.directory for seat in seats}) == 1
        return
    assert [seat.part for seat in seats] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert {seat.hosts for seat in seats} == {(0, 0, 1, 1)}
    [address] = {seat.address for seat in seats}
    assert address.startswith("127.0.0.1:")
    folders = [seat.directory for seat in seats]
    assert folders[0] == folders[1] != folders[2] == folders[3]


def test_ranks_with_devices_of_their_own_share_none(cluster: Cluster) -> None:
    seats: list[Seat] = []
    launch = partial(cluster.launch, [0, 1])
    group = AgentGroup([1, 1], SECRET, (HOST, 0), 30, launch, alone=True)

    def first(seat: Seat) -> bytes:
        seats.append(seat)
        return b"nothing that a rank understands"

    group.start(first)
    group.stop()
    assert [(seat.rank, seat.part) for seat in seats] == [(0, (0, 1)), (1, (0, 1))]


def test_ranks_must_divide_among_hosts() -> None:
    with pytest.raises(ConfigError, match="3 ranks do not divide among 2 hosts"):
        on_hosts(EngineConfig(tensor_parallel_size=3, nnodes=2))
    with pytest.raises(ConfigError, match="several hosts need --cluster-secret-file"):
        on_hosts(EngineConfig(tensor_parallel_size=2, nnodes=2))
