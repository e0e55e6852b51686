"""Several streams of updates as one, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from hotshoe.text.output_processor import RequestUpdate

T = TypeVar("T")


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Yield `(number of the stream, what it gave)`. The first error ends all of them."""
    if len(streams) == 1:
        async with aclosing(streams[0]):  # type: ignore[type-var]
            async for item in streams[0]:
                yield 0, item
        return
    mailbox: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()

    async def drain(number: int) -> None:
        try:
            async with aclosing(streams[number]):  # type: ignore[type-var]
                async for item in streams[number]:
                    mailbox.put_nowait((number, item))
        finally:
            mailbox.put_nowait(None)

    tasks = [asyncio.create_task(drain(number)) for number in range(len(streams))]
    try:
        running = len(tasks)
        while running:
            found = await mailbox.get()
            if found is not None:
                yield found
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def last_update(updates: AsyncIterator[RequestUpdate]) -> RequestUpdate:
    """Run to the end and return the last update."""
    last: RequestUpdate | None = None
    async with aclosing(updates):  # type: ignore[type-var]
        async for update in updates:
            last = update
    assert last is not None, "a stream of updates ends with a finished one"
    return last
