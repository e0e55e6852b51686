"""Runs a workload: an open load at drawn times, or a closed one with so many requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotshoe_bench.client import Client
from hotshoe_bench.datasets import Query
from hotshoe_bench.record import Exchange, Record, make_record
from hotshoe_bench.sse import read_stream

#: A load begins this long after it was asked for, so that its first requests are not late.
LEAD_S = 0.01


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to be sent."""

    query: Query
    body: bytes


class Load:
    """Sends jobs and judges what comes back.

    Args:
        client: Where they go.
        exact: Whether an answer of another length than asked for is a failure.
        on_done: Called with the number of finished requests after each.
    """

    def __init__(
        self, client: Client, exact: bool, on_done: Callable[[int], None] = lambda done: None
    ) -> None:
        self._client = client
        self._exact = exact
        self._on_done = on_done
        self._num_done = 0

    async def open(self, jobs: Sequence[Job], arrivals_s: Sequence[float]) -> list[Record]:
        """Send each job at its time, whatever the server does meanwhile."""
        start = time.perf_counter() + LEAD_S
        tasks = []
        for job, offset in zip(jobs, arrivals_s, strict=True):
            moment = start + offset
            wait = moment - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(self.run(job, moment)))
        return await asyncio.gather(*tasks)

    async def closed(self, jobs: Sequence[Job], concurrency: int) -> list[Record]:
        """Keep `concurrency` requests under way; each answered one makes room for the next."""
        records: dict[int, Record] = {}
        waiting = iter(enumerate(jobs))

        async def work() -> None:
            for number, job in waiting:
                records[number] = await self.run(job, time.perf_counter())

        await asyncio.gather(*(work() for _ in range(min(concurrency, len(jobs)))))
        return [records[number] for number in range(len(jobs))]

    async def run(self, job: Job, moment: float) -> Record:
        """Send one job, due at `moment`, and judge its answer."""
        exchange = await self._client.send(job.body, moment)
        record = self._judge(job.query, exchange)
        self._num_done += 1
        self._on_done(self._num_done)
        return record

    def _judge(self, query: Query, exchange: Exchange) -> Record:
        return make_record(query, exchange, read_stream(exchange.pieces), self._exact)
