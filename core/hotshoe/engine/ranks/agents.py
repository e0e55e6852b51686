"""Ranks on several hosts: an agent on each has started them. See `hotshoe.executor.RankGroup`.

The engine core listens; agents connect, and both prove that they know the cluster's secret. Who
starts agents is told by `launch`: a user on every host, or a scheduler of clusters.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks.agent import join_engine, watch
from hotshoe.engine.ranks.agent_messages import (
    Begin,
    End,
    FromRank,
    Gone,
    Hello,
    ToRank,
    decode_from,
    encode,
)
from hotshoe.engine.wire.children import RANKS
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.handshake import HANDSHAKE_S, greet, read_secret
from hotshoe.engine.wire.messages import Side, check_side
from hotshoe.errors import ConfigError, EngineError, HotshoeError
from hotshoe.executor import Seat
from hotshoe.executor.group import FirstMessage

LOG = logging.getLogger(__name__)
LOOK_S = 0.2
PATIENCE_S = 10.0


@dataclass(slots=True)
class Node:
    """An agent that is there, and the ranks that it has."""

    hello: Hello
    connection: Connection
    ranks: range

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        return f"node {self.hello.node} at {self.hello.address.rpartition(':')[0]}"


class AgentGroup:
    """See `hotshoe.executor.RankGroup`.

    Args:
        counts: How many ranks each node has, the first node first.
        secret: Of the cluster.
        listen: Address and port to listen at; port 0 takes any.
        limit_s: How long all agents may take to come.
        launch: Called with the port once agents may come; returns what says of a node that is not
            there why, or "".
        alone: Each rank sees devices that no other rank sees.
    """

    def __init__(
        self,
        counts: Sequence[int],
        secret: bytes,
        listen: tuple[str, int],
        limit_s: float,
        launch: Callable[[int], Callable[[int], str]],
        alone: bool = False,
    ) -> None:
        self.size = sum(counts)
        ends = [sum(counts[: node + 1]) for node in range(len(counts))]
        self._ranks = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._secret = secret
        self._listen = listen
        self._limit_s = limit_s
        self._launch = launch
        self._alone = alone
        self._why: Callable[[int], str] = lambda node: ""
        self._nodes: dict[int, Node] = {}
        self._selector = selectors.DefaultSelector()
        self._endings: dict[int, str] = {}
        self._told: set[int] = set()
        self._finalizer = weakref.finalize(self, _part_with, self._nodes, 0.0)

    def start(self, first: FirstMessage) -> None:
        """Wait for all agents, and have them start their ranks.

        Raises:
            EngineError: Nobody can listen at the address, or an agent does not come.
        """
        try:
            listener = socket.create_server(self._listen)
        except OSError as error:
            host, port = self._listen
            raise EngineError(
                f"nobody can listen at {host}:{port}: {error}; choose another --master-addr or "
                "--master-port"
            ) from None
        with listener:
            self._why = self._launch(listener.getsockname()[1])
            self._meet(listener)
        seats = self._seats()
        for number, node in sorted(self._nodes.items()):
            self._selector.register(node.connection, selectors.EVENT_READ, number)
            folder = seats[node.ranks.start].directory
            messages = [first(seats[rank]) for rank in node.ranks]
            node.connection.send(encode(Begin(self.size, node.ranks.start, folder, messages)))

    def _meet(self, listener: socket.socket) -> None:
        """Wait until all agents are there.

        Raises:
            EngineError: One does not come in time, or whoever launched it says that it cannot.
        """
        begin, patience_s = time.monotonic(), PATIENCE_S
        listener.settimeout(LOOK_S)
        while missing := [node for node in range(len(self._ranks)) if node not in self._nodes]:
            with contextlib.suppress(TimeoutError):
                self._admit(*listener.accept())
            names = ", ".join(f"node {node}" for node in missing)
            waited_s = time.monotonic() - begin
            for node in missing:
                if why := self._why(node):
                    raise EngineError(f"node {node} of {len(self._ranks)} cannot start: {why}")
            if waited_s > self._limit_s:
                raise EngineError(
                    f"no word of {names} of {len(self._ranks)} within {self._limit_s:g} s; "
                    "run `hotshoe join` there, or raise --load-timeout-s"
                )
            if waited_s > patience_s:
                LOG.warning("waiting for %s of %d", names, len(self._ranks))
                patience_s *= 2

    def _admit(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Take in an agent that knows the secret; others are told of and sent away."""
        try:
            greet(sock, self._secret, listens=True)
            watch(sock)
            connection = Connection(sock)
            message = connection.fetch(HANDSHAKE_S)
            hello = decode_from(message) if message is not None else None
            if not isinstance(hello, Hello):
                raise EngineError("it does not say who it is")
            check_side(Side(), hello.side)
            if hello.node in self._nodes or not 0 <= hello.node < len(self._ranks):
                raise EngineError(f"its number {hello.node} is taken, or none of this engine's")
        except (HotshoeError, ValueError) as error:
            LOG.warning("sent away who came from %s: %s", address[0], error)
            sock.close()
        else:
            self._nodes[hello.node] = Node(hello, connection, self._ranks[hello.node])

    def _seats(self) -> dict[int, Seat]:
        """Say where each rank is. Ranks of one host meet in the folder of its first agent."""
        nodes = [self._nodes[number] for number in sorted(self._nodes)]
        names = list(dict.fromkeys(node.hello.host for node in nodes))
        places = [(rank, names.index(node.hello.host)) for node in nodes for rank in node.ranks]
        hosts = tuple(host for _, host in places)
        folders = {node.hello.host: node.hello.directory for node in reversed(nodes)}
        address = nodes[0].hello.address if len(names) > 1 else ""
        seats = {}
        for rank, host in places:
            part = (0, 1) if self._alone else (hosts[:rank].count(host), hosts.count(host))
            apart = hosts if address else ()
            seats[rank] = Seat(rank, part, folders[names[host]], address, apart)
        return seats

    def send(self, rank: int, message: bytes) -> None:
        node = self._of(rank)
        if node is not None:
            node.connection.send(encode(ToRank(rank, message)))

    def receive(self, timeout_s: float) -> list[tuple[int, bytes | None]]:
        for key in list(self._selector.get_map().values()):
            connection = self._nodes[key.data].connection
            writing = selectors.EVENT_WRITE if connection.has_backlog else 0
            if key.events != selectors.EVENT_READ | writing:
                self._selector.modify(connection, selectors.EVENT_READ | writing, key.data)
        found: list[tuple[int, bytes | None]] = []
        for key, events in self._selector.select(max(timeout_s, 0)):
            node = self._nodes[key.data]
            if events & selectors.EVENT_WRITE:
                node.connection.flush()
            for message in node.connection.receive():
                news = decode_from(message)
                if isinstance(news, FromRank):
                    found.append((news.rank, news.message))
                elif isinstance(news, Gone):
                    found += self._lose([news.rank], news.ending)
            if node.connection.ended:
                self._selector.unregister(node.connection)
                why = self._why(node.hello.node)
                cause = f": {why}" if why else "; its host or its agent was lost"
                found += self._lose(node.ranks, f"went with {node.name}{cause}")
        return found

    def _lose(self, ranks: Sequence[int], ending: str) -> list[tuple[int, bytes | None]]:
        """Keep how ranks have ended, and return what tells that they have, once."""
        fresh = [rank for rank in ranks if rank not in self._endings]
        self._endings.update(dict.fromkeys(fresh, ending))
        return [(rank, None) for rank in fresh]

    def ending(self, rank: int) -> str:
        return self._endings.get(rank, "closed its channel")

    def name(self, rank: int) -> str:
        node = self._of(rank)
        return "no node yet" if node is None else node.name

    def stop(self, leave_s: float = 0.0) -> None:
        self._finalizer.detach()
        _part_with(self._nodes, leave_s)
        self._selector.close()

    def _of(self, rank: int) -> Node | None:
        return next((node for node in self._nodes.values() if rank in node.ranks), None)


def _part_with(nodes: dict[int, Node], leave_s: float) -> None:
    """Tell agents to end their ranks, and wait until they have."""
    for node in nodes.values():
        node.connection.send(encode(End(leave_s)))
    deadline = time.monotonic() + leave_s + RANKS.killed_s
    for node in nodes.values():
        while not node.connection.ended and (left_s := deadline - time.monotonic()) > 0:
            node.connection.flush()
            node.connection.fetch(left_s)
        node.connection.close()
    nodes.clear()


def on_hosts(config: EngineConfig) -> AgentGroup:
    """Return ranks on several hosts, this one being the first; the others run `hotshoe join`.

    Raises:
        ConfigError: Ranks do not divide among hosts, or the secret is missing.
    """
    share, rest = divmod(config.num_ranks, config.nnodes)
    if rest:
        raise ConfigError(
            f"{config.num_ranks} ranks do not divide among {config.nnodes} hosts; choose "
            "tensor_parallel_size * pipeline_parallel_size as a multiple of nnodes"
        )
    secret, limit_s = read_secret(config.cluster_secret_file), config.load_timeout_s

    def launch(port: int) -> Callable[[int], str]:
        """Run the agent of this host, in a thread."""
        arguments = (config.master_addr, port, secret, 0, limit_s)
        thread = threading.Thread(target=join_engine, args=arguments, name="hotshoe-agent")
        thread.daemon = True
        thread.start()
        return lambda node: ""

    listen = (config.master_addr, config.master_port)
    return AgentGroup([share] * config.nnodes, secret, listen, limit_s, launch)
