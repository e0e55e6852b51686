"""One store behind sockets: every process finds what another one has put."""

import asyncio
import socket
from contextlib import asynccontextmanager

import uvloop

from hotshoe_server.store import ResponseStore, StoredResponse
from hotshoe_server.store_link import RemoteStore, serve_store

BIG = StoredResponse("tenant", bytes(range(256)) * 2**13, b"[]")


@asynccontextmanager
async def processes(count: int, max_bytes: int = 2**26):
    """Yield the store itself and so many ways to it."""
    kept = ResponseStore(max_bytes)
    pairs = [socket.socketpair() for _ in range(count)]
    tasks = [asyncio.create_task(serve_store(kept, ours)) for ours, _ in pairs]
    stores = [RemoteStore(theirs) for _, theirs in pairs]
    yield kept, stores
    for store in stores:
        store.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)  # they end with the processes


def test_what_one_puts_the_other_finds() -> None:
    async def run() -> None:
        async with processes(2) as (kept, [first, second]):
            await first.put("a", BIG)
            assert await second.get("a", "tenant") == BIG
            assert await second.get("a", None) is None and await second.get("b", "tenant") is None
            assert not await second.delete("a", "other")
            assert await second.delete("a", "tenant")
            assert await first.get("a", "tenant") is None
            assert kept.num_bytes == 0

    uvloop.run(run())


def test_many_at_once_get_their_own_answers() -> None:
    async def run() -> None:
        async with processes(3) as (kept, stores):
            entries = {str(i): StoredResponse(None, b"%d" % i, b"") for i in range(100)}
            await asyncio.gather(*(stores[int(i) % 3].put(i, e) for i, e in entries.items()))
            found = await asyncio.gather(*(stores[int(i) % 2].get(i, None) for i in entries))
            assert found == list(entries.values())
            assert len(kept) == 100

    uvloop.run(run())


def test_a_caller_who_leaves_disturbs_nobody() -> None:
    async def run() -> None:
        async with processes(1) as (_, [store]):
            await store.put("a", BIG)
            leaving = [asyncio.create_task(store.get("a", "tenant")) for _ in range(5)]
            await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
            assert await store.get("b", None) is None
            assert await store.get("a", "tenant") == BIG

    uvloop.run(run())


def test_the_bound_is_that_of_the_store() -> None:
    async def run() -> None:
        async with processes(1, max_bytes=100) as (kept, [store]):
            await store.put("a", BIG)
            assert await store.get("a", "tenant") is None and len(kept) == 0

    uvloop.run(run())


def test_what_a_process_was_making_when_it_went_has_failed() -> None:
    async def run() -> None:
        async with processes(2) as (_, [first, second]):
            running = StoredResponse(
                "t", b'{"status":"queued"}', b"[]", running=True, followed=True
            )
            for name in "ab":
                assert await first.put(name, running)
            assert await first.extend("a", "t", [b"one", b"two"])
            assert await first.extend("b", "t", [], StoredResponse("t", b"{}", b"[]"))
            found = await second.events("a", "t", 1)
            assert (found.events, found.total, found.running) == ([b"two"], 2, True)
            assert await second.events("a", None, 0) is None
            first.close()
            async with asyncio.timeout(60):
                while (await second.events("a", "t", 0)).running:
                    await asyncio.sleep(0.01)
            assert b"failed" in (await second.get("a", "t")).answer
            assert (await second.get("b", "t")).answer == b"{}"

    uvloop.run(run())
