"""Whole messages over a stream socket that never blocks: four bytes of length, then the message.

What the kernel does not take at once is kept and sent by `flush`, so that no sender ever waits for
a slow reader. Both sides of every transport between processes use it.
"""

from __future__ import annotations

import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

#: What stands before a message: its length.
HEADER = struct.Struct("<I")
_CHUNK_BYTES = 1 << 18
_CHUNKS_PER_CALL = 64
MAX_MESSAGE_BYTES = 1 << 28
MAX_BACKLOG_BYTES = 1 << 28


def framed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return HEADER.pack(len(message)) + message


class Connection:
    """One end of a connection. `send` may be called from any thread, all else from one.

    Args:
        sock: Connected; owned from now on.
        on_backlog: Called when a message could not be sent at once, so that somebody flushes.

    Attributes:
        ended: The other end has gone, or broke the rules. What it sent before can still be read.
    """

    def __init__(self, sock: socket.socket, on_backlog: Callable[[], None] = lambda: None) -> None:
        sock.setblocking(False)
        self.ended = False
        self._sock = sock
        self._on_backlog = on_backlog
        self._lock = threading.Lock()
        self._backlog = bytearray()
        self._unread = bytearray()
        self._messages: deque[bytes] = deque()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_backlog(self) -> bool:
        """Something waits for `flush`."""
        return bool(self._backlog)

    def send(self, message: bytes) -> None:
        """Send a message, or keep it; to an end that has gone, nothing is sent."""
        data = framed(message)
        with self._lock:
            if self.ended:
                return
            if self._backlog:
                self._backlog += data
                self.ended = len(self._backlog) > MAX_BACKLOG_BYTES
                return
            num_sent = self._write(data)
            self._backlog += memoryview(data)[num_sent:]
        if self._backlog:
            self._on_backlog()

    def flush(self) -> None:
        """Send what was kept, as far as the kernel takes it now."""
        with self._lock:
            num_sent = self._write(self._backlog)
            del self._backlog[:num_sent]

    def drain(self) -> None:
        """Wait until all that was kept is sent, or the other end has gone."""
        while self.has_backlog:
            select.select([], [self._sock], [])
            self.flush()

    def receive(self) -> list[bytes]:
        """Return the messages that have come, without waiting."""
        self._read()
        found = list(self._messages)
        self._messages.clear()
        return found

    def fetch(self, timeout_s: float | None = None) -> bytes | None:
        """Wait for one message; None if the time is over or the other end has gone."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with selectors.PollSelector() as selector:  # which needs no descriptor of its own
            if not self.ended:
                selector.register(self._sock, selectors.EVENT_READ)
            while not self._messages and not self.ended:
                left_s = None if end_s is None else end_s - time.monotonic()
                if left_s is not None and left_s < 0:
                    return None
                if selector.select(left_s):
                    self._read()
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Close the socket. Messages that were kept are lost."""
        with self._lock:
            self.ended = True
            self._backlog.clear()
            self._sock.close()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # gone; reading will find what it still sent, then the end
            return len(data)

    def _read(self) -> None:
        if self.ended:
            return
        for _ in range(_CHUNKS_PER_CALL):
            try:
                chunk = self._sock.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.ended = True
                break
            self._unread += chunk
        self._split()

    def _split(self) -> None:
        start, unread = 0, self._unread
        while len(unread) - start >= HEADER.size:
            (size,) = HEADER.unpack_from(unread, start)
            if size > MAX_MESSAGE_BYTES:
                self.ended = True
                break
            begin = start + HEADER.size
            if len(unread) < begin + size:
                break
            start = begin + size
            self._messages.append(bytes(memoryview(unread)[begin:start]))
        del unread[:start]


class Waker:
    """Lets a thread that selects return."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)

    def fileno(self) -> int:
        return self._reading.fileno()

    def wake(self) -> None:
        try:
            self._writing.send(b".")
        except OSError:
            return  # full: it will wake up anyway; closed: nobody sleeps

    def clear(self) -> None:
        try:
            while self._reading.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
