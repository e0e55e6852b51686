"""Several streams of updates as one, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

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
