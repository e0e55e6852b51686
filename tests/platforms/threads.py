"""Ranks that are threads, over a library that needs no device, and what every one has to do right.

What all communicators promise among processes, the conformance kit tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hotshoe.slots import Rendezvous

TIMEOUT_S = 120.0
#: Runs a function of rank and communicator on every rank; returns the results in their order.
Run = Callable[[Callable[[int, Any], Any]], list[Any]]


@contextmanager
def met(members: Sequence[Any], folder: Path) -> Iterator[Run]:
    """Let ranks meet; they part in the end."""
    size = len(members)
    with ThreadPoolExecutor(size) as pool:

        def run(work: Callable[[int, Any], Any]) -> list[Any]:
            futures = [pool.submit(work, rank, member) for rank, member in enumerate(members)]
            return [future.result() for future in futures]

        run(lambda r, member: member.open(Rendezvous(str(folder), r, size, TIMEOUT_S)))
        yield run
        run(lambda r, member: member.close())


def equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def check_pieces(size: int, run: Run, even: bool, given: bool) -> None:
    """Reduce and scatter, then gather, pieces of even sizes or not, into given memory or new."""
    sizes = [3] * size if even else [random.randrange(4) for _ in range(size)]
    told = None if even else sizes
    whole = [torch.randint(-99, 99, (sum(sizes), 2)).float() for _ in range(size)]
    kept = [x.clone() for x in whole]
    outs = [torch.empty(n, 2) if given else None for n in sizes]
    found = run(lambda rank, group: group.reduce_scatter(whole[rank], told, outs[rank]))
    equal(found, torch.stack(whole).sum(0).split(sizes))
    equal(whole, kept)
    assert not given or all(ours is out for ours, out in zip(found, outs, strict=True))
    parts = [torch.randn(n, 2) for n in sizes]
    outs = [torch.empty(sum(sizes), 2) if given else None for _ in sizes]
    found = run(lambda rank, group: group.all_gather(parts[rank], told, outs[rank]))
    equal(found, [torch.cat(parts)] * size)
    assert not given or all(ours is out for ours, out in zip(found, outs, strict=True))


def check_transfers(size: int, run: Run) -> None:
    """Let every rank send to and receive from all others, in an order of its own, then wait."""

    def work(rank: int, group: Any) -> dict[int, Any]:
        peers = [peer for peer in range(size) if peer != rank]
        found = {peer: torch.zeros(3) for peer in peers}
        asked = [lambda p=p: group.send(torch.full((3,), 10.0 * rank + p), p) for p in peers]
        asked += [lambda p=p: group.recv(found[p], p) for p in peers]
        pending = [ask() for ask in random.sample(asked, len(asked))]
        for transfer in pending:
            transfer.wait()
        return found

    for rank, found in enumerate(run(work)):
        for peer, x in found.items():
            torch.testing.assert_close(x, torch.full((3,), 10.0 * peer + rank))


def check_exchanges(size: int, run: Run) -> None:
    """Send every rank a piece of its own, of any size and of one row."""
    table = [[random.randrange(3) for _ in range(size)] for _ in range(size)]
    inputs = [torch.randn(sum(row), 2) for row in table]
    pieces = [x.split(row) for x, row in zip(inputs, table, strict=True)]
    found = run(
        lambda rank, group: group.all_to_all(inputs[rank], table[rank], [r[rank] for r in table])
    )
    equal(found, [torch.cat([piece[rank] for piece in pieces]) for rank in range(size)])
    even = [torch.arange(size) + 10 * rank for rank in range(size)]
    turned = [torch.arange(size) * 10 + rank for rank in range(size)]
    equal(run(lambda rank, group: group.all_to_all(even[rank])), turned)
    outs = [torch.empty(size, dtype=torch.int64) for _ in range(size)]
    run(lambda rank, group: group.all_to_all(even[rank], out=outs[rank]))
    equal(outs, turned)
