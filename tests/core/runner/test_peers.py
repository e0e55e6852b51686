"""Two stages of two ranks each, as threads over the reference communicator."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotshoe.engine.ranks.agent import free_port
from hotshoe.errors import ConfigError
from hotshoe.layers.offload import Offload
from hotshoe.platform import DeviceFacts
from hotshoe.runner.peers import Peers, entering_size
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe.slots.reference.communicator import Communicator
from hotshoe.types import CacheSpec
from hotshoe.types.mesh import Mesh

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture(params=["one host", "two hosts"])
def ranks(request, tmp_path: Path):
    """All four, met, each with a thread."""
    apart = request.param == "two hosts"
    address = f"127.0.0.1:{free_port('127.0.0.1')}" if apart else ""
    hosts = (0, 0, 1, 1) if apart else ()

    def make(rank: int) -> Peers:
        groups = [Communicator(CommunicatorSpec(2), FACTS) for _ in range(2)]
        peers = Peers(Mesh.at(rank, pp=2, tp=2), *groups)
        peers.open(Rendezvous(str(tmp_path), rank, 4, 60.0, address, hosts=hosts))
        return peers

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(4)))
        yield lambda work: list(pool.map(work, made))
        list(pool.map(Peers.close, made))


def test_a_wide_model_says_what_enters_it() -> None:
    assert entering_size(SimpleNamespace(hidden_size=8)) == 8
    assert entering_size(SimpleNamespace(hidden_size=8, entering_size=24)) == 24


def test_hidden_states_go_to_the_like_rank_of_the_next_stage(ranks) -> None:
    def work(peers: Peers) -> torch.Tensor | None:
        peers.make_inbox(4, torch.empty(0, 3))
        own = torch.full((2, 3), float(peers.mesh.tp.rank))
        if peers.mesh.pp.is_first:
            peers.send(own)
            peers.send(own.repeat(3, 1) + 5)
            return None
        peers.inbox.fill_(torch.nan)
        found = peers.receive(2, padded=3)
        assert found.data_ptr() == peers.inbox.data_ptr()
        assert torch.equal(found, own)
        assert not peers.inbox[2].any() and peers.inbox[3].isnan().all()
        return peers.receive(6)  # more than the inbox has room for

    found = ranks(work)
    assert [None if x is None else x.tolist() for x in found] == [
        None,
        None,
        [[5.0] * 3] * 6,
        [[6.0] * 3] * 6,
    ]


def test_stages_tell_each_other_of_their_caches(ranks) -> None:
    kinds = [CacheSpec("full", 4, (), window=None), CacheSpec("window", 4, (), window=200)]
    stages = [kinds[:1], [*kinds, *kinds]]
    found = ranks(lambda peers: peers.all_specs(stages[peers.mesh.pp.rank], "cpu"))
    assert found == [([*stages[0], *stages[1]], first) for first in (0, 0, 1, 1)]


def test_all_wait_for_all(ranks) -> None:
    assert ranks(lambda peers: peers.wait("cpu")) == [None] * 4


@pytest.mark.parametrize("against", [(), (3,), (0, 1)])
def test_ranks_agree_if_none_is_against(ranks, against: tuple[int, ...]) -> None:
    def work(peers: Peers) -> bool:
        number = 2 * peers.mesh.pp.rank + peers.mesh.tp.rank
        return peers.agree(number not in against, "cpu")

    assert ranks(work) == [not against] * 4


@pytest.mark.parametrize("stage", [0, 1, None])
def test_weights_for_host_memory_that_no_stage_has_are_refused_by_all(ranks, stage) -> None:
    def work(peers: Peers) -> str:
        offload = Offload("offload_weights", re.compile("typo"), 0)
        offload.plan(alone=False)
        offload.rings = [object()] if peers.mesh.pp.rank == stage else []
        try:
            peers.check_offload(SimpleNamespace(offload=offload, device="cpu"))
        except ConfigError as error:
            return str(error)
        return ""

    said = ranks(work)
    assert len(set(said)) == 1
    assert said[0].startswith("offload_weights: no three layers") == (stage is None)


def test_alone_there_is_nobody_to_hear() -> None:
    peers = Peers()
    peers.wait("cpu")
    assert peers.all_specs([], "cpu") == ([], 0)
    peers.close()
    assert Peers().agree(True, "cpu") and not Peers().agree(False, "cpu")
