"""Open and closed loads: order of records, and who waits for whom."""

import asyncio
import itertools
import time
from collections.abc import Callable

from hotshoe_bench.client import Client, Target, request_body
from hotshoe_bench.datasets import Query
from hotshoe_bench.load import Job, Load
from hotshoe_bench.record import Record


def jobs(*lengths: int) -> list[Job]:
    return [
        Job(Query([1], 1, n), request_body("/v1/completions", "m", [1], n, {})) for n in lengths
    ]


def run(url: str, load: Callable[[Load], object], done: list[int]) -> list[Record]:
    async def inner() -> list[Record]:
        async with Client(Target(url, "/v1/completions")) as client:
            return await load(Load(client, True, done.append))

    return asyncio.run(inner())


def test_records_come_in_the_order_of_jobs(server) -> None:
    server.gap_s = 0.02
    done: list[int] = []
    records = run(server.url, lambda load: load.closed(jobs(9, 1, 5, 2), 4), done)
    assert [record.output_len for record in records] == [9, 1, 5, 2]
    assert done == [1, 2, 3, 4]
    records = run(server.url, lambda load: load.open(jobs(9, 1), [0.0, 0.0]), [])
    assert [record.output_len for record in records] == [9, 1]


def test_an_open_load_does_not_wait(server) -> None:
    server.gather = 3
    begin = time.perf_counter()
    records = run(server.url, lambda load: load.open(jobs(1, 1, 1), [0.0, 0.05, 0.1]), [])
    offsets = [record.sent_s - begin for record in records]
    assert all(at >= due for at, due in zip(offsets, [0.0, 0.05, 0.1], strict=True))
    assert server.most_open == 3


def test_a_closed_load_waits(server) -> None:
    server.first_s = 0.05
    records = run(server.url, lambda load: load.closed(jobs(1, 1, 1), 1), [])
    for earlier, later in itertools.pairwise(records):
        assert later.sent_s >= earlier.ended_s
