"""What every communicator promises, over two and three ranks: threads of this process here.

Every operation, type and shape, empty and uneven pieces, in place and not, one after the other.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotshoe.errors import EngineError
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import SLOTS, CommunicatorSpec, Rendezvous, Selector

SUMMED = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64]
MOVED = [*SUMMED, torch.uint8, torch.bool]
TAILS = [(), (3,), (2, 5), (300_001,)]
TIMEOUT_S = 20.0


class Ranks:
    """A group whose ranks are threads."""

    def __init__(self, name: str, size: int, directory: Path) -> None:
        platform = choose_platform(PluginManager(), "cpu")
        forced = {"communicator": name}
        selector = Selector(SLOTS, platform.candidates(), platform.facts(), forced)
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        self.members = [
            selector.choose("communicator", CommunicatorSpec(size)) for _ in range(size)
        ]
        self.run(
            lambda rank, member: member.open(Rendezvous(str(directory), rank, size, TIMEOUT_S))
        )

    def run(self, work: Callable[[int, Any], Any]) -> list[Any]:
        """Let every rank do something; return what each got."""
        futures = [self._pool.submit(work, r, member) for r, member in enumerate(self.members)]
        return [future.result() for future in futures]

    def close(self) -> None:
        self.run(lambda rank, member: member.close())
        self._pool.shutdown()


GROUPS = list(itertools.product(["reference", "shared_memory"], [2, 3]))


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-{group[1]}")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    group = Ranks(*request.param, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


several = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
seeds = st.integers(0, 2**32 - 1)
tails = st.sampled_from(TAILS)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values whose sums are rounded."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2**30, shape, generator=generator).to(dtype)


def rows(tail: tuple[int, ...], count: int) -> int:
    """Few rows where each is long."""
    return min(count, 3) if len(tail) and tail[0] > 1000 else count


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum that every rank must get, bit for bit."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    result = parts[0].to(wide)
    for part in parts[1:]:
        result = result + part.to(wide)
    return result.to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and torch.equal(found, expected)
    )


@several
@given(dtype=st.sampled_from(SUMMED), tail=tails, count=st.integers(0, 9), seed=seeds)
def test_all_reduce(ranks: Ranks, dtype, tail, count, seed) -> None:
    shape = (rows(tail, count), *tail)
    inputs = [draw(shape, dtype, seed + rank) for rank in range(ranks.size)]
    kept = [x.clone() for x in inputs]
    fresh = ranks.run(lambda rank, group: group.all_reduce(inputs[rank]))
    assert all(map(same, inputs, kept))
    given_out = ranks.run(lambda rank, group: group.all_reduce(inputs[rank], inputs[rank]))
    for rank in range(ranks.size):
        assert same(fresh[rank], total(kept))
        assert given_out[rank] is inputs[rank] and same(inputs[rank], total(kept))


@several
@given(
    dtype=st.sampled_from(MOVED),
    tail=tails,
    counts=st.lists(st.integers(0, 7), min_size=3, max_size=3),
    even=st.booleans(),
    seed=seeds,
)
def test_all_gather(ranks: Ranks, dtype, tail, counts, even, seed) -> None:
    sizes = [rows(tail, counts[0 if even else rank]) for rank in range(ranks.size)]
    inputs = [draw((sizes[rank], *tail), dtype, seed + rank) for rank in range(ranks.size)]
    outs = [torch.empty((sum(sizes), *tail), dtype=dtype) for _ in sizes]
    told = None if even else sizes
    fresh = ranks.run(lambda rank, group: group.all_gather(inputs[rank], told))
    filled = ranks.run(lambda rank, group: group.all_gather(inputs[rank], told, outs[rank]))
    for rank in range(ranks.size):
        assert same(fresh[rank], torch.cat(inputs))
        assert filled[rank] is outs[rank] and same(outs[rank], torch.cat(inputs))


@several
@given(
    dtype=st.sampled_from(SUMMED),
    tail=tails,
    counts=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    even=st.booleans(),
    seed=seeds,
)
def test_reduce_scatter(ranks: Ranks, dtype, tail, counts, even, seed) -> None:
    sizes = [rows(tail, counts[0 if even else rank]) for rank in range(ranks.size)]
    inputs = [draw((sum(sizes), *tail), dtype, seed + rank) for rank in range(ranks.size)]
    told = None if even else sizes
    outs = [torch.empty((sizes[rank], *tail), dtype=dtype) for rank in range(ranks.size)]
    fresh = ranks.run(lambda rank, group: group.reduce_scatter(inputs[rank], told))
    ranks.run(lambda rank, group: group.reduce_scatter(inputs[rank], told, outs[rank]))
    for rank, expected in enumerate(total(inputs).split(sizes)):
        assert same(fresh[rank], expected)
        assert same(outs[rank], expected)


@several
@given(
    dtype=st.sampled_from(MOVED),
    tail=tails,
    counts=st.lists(st.integers(0, 4), min_size=9, max_size=9),
    even=st.booleans(),
    seed=seeds,
)
def test_all_to_all(ranks: Ranks, dtype, tail, counts, even, seed) -> None:
    size = ranks.size
    table = [
        [rows(tail, counts[0 if even else size * a + b]) for b in range(size)] for a in range(size)
    ]
    inputs = [draw((sum(table[rank]), *tail), dtype, seed + rank) for rank in range(size)]
    pieces = [x.split(send) for x, send in zip(inputs, table, strict=True)]

    def work(rank, group):
        told = (None, None) if even else (table[rank], [send[rank] for send in table])
        return group.all_to_all(inputs[rank], *told)

    for rank, found in enumerate(ranks.run(work)):
        assert same(found, torch.cat([pieces[source][rank] for source in range(size)]))


@several
@given(dtype=st.sampled_from(MOVED), tail=tails, count=st.integers(0, 5), seed=seeds)
def test_broadcast(ranks: Ranks, dtype, tail, count, seed) -> None:
    shape = (rows(tail, count), *tail)
    for source in range(ranks.size):
        inputs = [draw(shape, dtype, seed + rank) for rank in range(ranks.size)]
        expected = inputs[source].clone()
        found = ranks.run(lambda rank, group, x=inputs, s=source: group.broadcast(x[rank], s))
        for rank in range(ranks.size):
            assert found[rank] is inputs[rank] and same(found[rank], expected)


@several
@given(
    dtype=st.sampled_from(MOVED),
    shapes=st.lists(tails, min_size=1, max_size=4),
    late=st.booleans(),
    seed=seeds,
)
def test_transfers(ranks: Ranks, dtype, shapes, late, seed) -> None:
    """Everybody sends several tensors to everybody, before or after they are awaited."""
    size = ranks.size

    def message(source: int, to: int, number: int) -> torch.Tensor:
        return draw((2, *shapes[number]), dtype, seed + 100 * source + 10 * to + number)

    def work(rank, group):
        peers = [peer for peer in range(size) if peer != rank]
        tags = list(itertools.product(peers, range(len(shapes))))
        outs = {tag: torch.zeros((2, *shapes[tag[1]]), dtype=dtype) for tag in tags}

        def sends():
            return [group.send(message(rank, peer, number), peer) for peer, number in tags]

        def receives():
            return [group.recv(outs[tag], tag[0]) for tag in tags]

        pending = [*receives(), *sends()] if late else [*sends(), *receives()]
        for transfer in reversed(pending) if late else pending:
            transfer.wait()
        return outs

    for rank, outs in enumerate(ranks.run(work)):
        for (source, number), found in outs.items():
            assert same(found, message(source, rank, number))


@several
@given(kinds=st.lists(st.sampled_from("rgbst"), min_size=1, max_size=30), seed=seeds)
def test_operations_keep_their_order(ranks: Ranks, kinds, seed) -> None:
    """Any sequence of operations gives on every rank what each gives alone."""
    size = ranks.size
    inputs = [draw((size, 2), torch.int64, seed + rank) for rank in range(size)]
    steps: dict[str, Callable[[int, Any, torch.Tensor], torch.Tensor]] = {
        "r": lambda rank, group, x: group.all_reduce(x),
        "g": lambda rank, group, x: group.all_gather(x)[:size],
        "b": lambda rank, group, x: group.broadcast(x.clone(), size - 1),
        "s": lambda rank, group, x: group.reduce_scatter(x).expand(size, 2).contiguous(),
        "t": lambda rank, group, x: group.all_to_all(x),
    }
    plain: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
        "r": lambda xs: [total(xs)] * size,
        "g": lambda xs: [xs[0]] * size,
        "b": lambda xs: [xs[-1]] * size,
        "s": lambda xs: [row.expand(size, 2) for row in total(xs)],
        "t": lambda xs: [torch.stack([x[rank] for x in xs]) for rank in range(size)],
    }

    def work(rank, group):
        x = inputs[rank]
        for kind in kinds:
            x = steps[kind](rank, group, x)
        return x

    expected = inputs
    for kind in kinds:
        expected = plain[kind](expected)
    assert all(map(same, ranks.run(work), expected))


@pytest.mark.parametrize("name", ["reference", "shared_memory"])
def test_a_rank_that_leaves_is_missed(name: str, tmp_path: Path) -> None:
    group = Ranks(name, 2, tmp_path)

    def work(rank, member):
        if rank == 0:
            member.close()
            return
        with pytest.raises(EngineError, match="rank 1 lost the other ranks"):
            member.all_reduce(torch.ones(4))
        return

    group.run(work)
    group.close()


@pytest.mark.parametrize("name", ["reference", "shared_memory"])
def test_a_rank_that_stays_away_is_not_waited_for_forever(name: str, tmp_path: Path) -> None:
    platform = choose_platform(PluginManager(), "cpu")
    selector = Selector(SLOTS, platform.candidates(), platform.facts(), {"communicator": name})
    alone = selector.choose("communicator", CommunicatorSpec(2))
    with pytest.raises(EngineError):
        alone.open(Rendezvous(str(tmp_path), 0, 2, 0.2))


def test_rows_that_do_not_divide_need_sizes(ranks: Ranks) -> None:
    x = torch.zeros(3 * ranks.size + 1, 2)
    for member in ranks.members:
        with pytest.raises(ValueError, match="do not divide"):
            member.reduce_scatter(x)
        with pytest.raises(ValueError, match="do not divide"):
            member.all_to_all(x)
