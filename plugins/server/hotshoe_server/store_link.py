"""The store of responses for several API processes: the supervisor keeps it, they ask for it.

Each process has a stream socket of its own, with the frames of `hotshoe.engine.wire.connection`. An
answer to `put` means that every process finds the response from now on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from hotshoe.engine.wire.connection import HEADER, framed
from hotshoe_server.store import Events, ResponseStore, Store, StoredResponse


class Put(Struct, tag=True):
    """See `Store.put`."""

    id: str
    entry: StoredResponse

    async def run(self, store: Store) -> bool:
        return await store.put(self.id, self.entry)


class Extend(Struct, tag=True):
    """See `Store.extend`."""

    id: str
    tenant: str | None
    events: list[bytes]
    entry: StoredResponse | None

    async def run(self, store: Store) -> bool:
        return await store.extend(self.id, self.tenant, self.events, self.entry)


class Follow(Struct, tag=True):
    """See `Store.events`."""

    id: str
    tenant: str | None
    start: int

    async def run(self, store: Store) -> Events | None:
        return await store.events(self.id, self.tenant, self.start)


class Get(Struct, tag=True):
    """See `Store.get`."""

    id: str
    tenant: str | None

    async def run(self, store: Store) -> StoredResponse | None:
        return await store.get(self.id, self.tenant)


class Delete(Struct, tag=True):
    """See `Store.delete`."""

    id: str
    tenant: str | None

    async def run(self, store: Store) -> bool:
        return await store.delete(self.id, self.tenant)


Command = Put | Extend | Follow | Get | Delete
_decode = msgspec.msgpack.Decoder(Command).decode


async def serve_store(store: ResponseStore, sock: socket.socket) -> None:
    """Answer one process until it has gone; what it was making then has failed."""
    reader, writer = await asyncio.open_connection(sock=sock)
    running: set[str] = set()
    try:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, EOFError):
            while True:
                command = _decode(await _receive(reader))
                answer = await command.run(store)
                if isinstance(command, (Put, Extend)) and command.entry is not None:
                    (running.add if command.entry.running else running.discard)(command.id)
                await _send(writer, answer)
    finally:
        for response_id in running:
            await store.abandon(response_id)


class RemoteStore:
    """See `hotshoe_server.store.Store`.

    Args:
        sock: Leads to `serve_store`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def put(self, response_id: str, entry: StoredResponse) -> bool:
        return bool(await self._ask(Put(response_id, entry)))

    async def extend(
        self,
        response_id: str,
        tenant: str | None,
        events: Sequence[bytes],
        entry: StoredResponse | None = None,
    ) -> bool:
        return bool(await self._ask(Extend(response_id, tenant, list(events), entry)))

    async def events(self, response_id: str, tenant: str | None, start: int) -> Events | None:
        found = await self._ask(Follow(response_id, tenant, start))
        return msgspec.convert(found, Events | None)

    async def get(self, response_id: str, tenant: str | None) -> StoredResponse | None:
        found = await self._ask(Get(response_id, tenant))
        return msgspec.convert(found, StoredResponse | None)

    async def delete(self, response_id: str, tenant: str | None) -> bool:
        return bool(await self._ask(Delete(response_id, tenant)))

    def close(self) -> None:
        if self._streams is None:
            self._sock.close()
        else:
            self._streams[1].close()

    async def _ask(self, command: Command) -> Any:
        """Ask and wait for the answer, even for a caller who is cancelled: it must be read."""
        return await asyncio.shield(self._exchange(command))

    async def _exchange(self, command: Command) -> Any:
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._sock)
            reader, writer = self._streams
            await _send(writer, command)
            return msgspec.msgpack.decode(await _receive(reader))


async def _send(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(framed(msgspec.msgpack.encode(message)))
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return await reader.readexactly(size)
