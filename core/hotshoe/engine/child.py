"""The engine process: boots a core and runs its loop. Started by `EngineProcess` alone.

Ends at a SIGTERM in whatever phase it is, and when its owner has gone; removes its socket then.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.boot import boot
from hotshoe.engine.connection import Connection
from hotshoe.engine.loop import EngineLoop
from hotshoe.engine.messages import (
    Dead,
    Ready,
    Side,
    Start,
    WireError,
    check_side,
    decode_start,
    encode,
)
from hotshoe.engine.socket_port import SocketPort
from hotshoe.errors import HotshoeError

#: How long an orphan tries to end in good order.
GRACE_S = 1.0


class Child:
    """What the engine process consists of.

    Args:
        control: The channel to its owner.
        start: What the owner asked for.
    """

    def __init__(self, control: Connection, start: Start) -> None:
        self._control = control
        self._path = Path(start.socket_path)
        self._remove_folder = start.remove_folder
        self._config = start.config
        self._side = start.side
        self._loop: EngineLoop | None = None
        self._stopping = False
        self._orphaned = False

    def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._watch_owner, name="hotshoe-owner", daemon=True).start()
        try:
            check_side(Side(), self._side)
            self._serve()
        except SystemExit:
            return 0
        except Exception as error:
            if not isinstance(error, HotshoeError):
                traceback.print_exc()
            self._control.send(encode(Dead(WireError.wrap(error))))
            return 1
        finally:
            if self._orphaned:
                self._clean()
        return 0

    def _serve(self) -> None:
        booted = boot(EngineConfig.from_mapping(self._config))
        with (
            contextlib.closing(booted.core),
            contextlib.closing(SocketPort(self._path, self._control)) as port,
        ):
            self._loop = EngineLoop(booted.core, booted.info, port)
            if not self._stopping:
                self._control.send(encode(Ready()))
                self._loop.run()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        if self._loop is None:
            raise SystemExit
        self._loop.stop()

    def _watch_owner(self) -> None:
        """Wait for the end of the channel, the only thing that can come now."""
        select.select([self._control], [], [])
        self._orphaned = True
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        self._clean()
        os._exit(1)

    def _clean(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._remove_folder:
            shutil.rmtree(self._path.parent, ignore_errors=True)


def main() -> int:
    """Take the channel from the command line, and its first message from the channel."""
    control = Connection(socket.socket(fileno=int(sys.argv[1])))
    message = control.fetch()
    if message is None:  # the owner went before it said anything
        return 1
    return Child(control, decode_start(message)).run()


if __name__ == "__main__":
    sys.exit(main())
