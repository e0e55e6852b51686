"""The engine process: boots a core and runs its loop. Started by `EngineProcess` alone.

Ends at a SIGTERM in whatever phase it is, and when its owner has gone; removes its socket then.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot
from hotshoe.engine.transport.loop import EngineLoop
from hotshoe.engine.transport.socket_port import SocketPort
from hotshoe.engine.wire.children import ENGINE, channel_to_owner, when_orphaned
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.messages import (
    Dead,
    Ready,
    Side,
    Start,
    WireError,
    check_side,
    decode_start,
    encode,
)
from hotshoe.errors import HotshoeError, lack_of


class Stopped(KeyboardInterrupt):
    """A SIGTERM came; nothing that guards against foreign code holds it up."""


class Child:
    """What the engine process consists of.

    Args:
        control: The channel to its owner.
        folder: Made by the owner for the socket alone, to be removed when the owner has gone.

    Attributes:
        is_orphaned: The owner has gone.
    """

    def __init__(self, control: Connection, folder: str | None) -> None:
        self._control = control
        self._folder = folder
        self._path: Path | None = None
        self._loop: EngineLoop | None = None
        self._stopping = False
        self.is_orphaned = False

    def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        try:
            signal.signal(signal.SIGTERM, self._stop)
            message = self._control.fetch()
            if message is None:
                self.is_orphaned = True
                return 1
            when_orphaned(self._control, self._leave)
            self._serve(decode_start(message))
        except Stopped:
            return 0
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = lack_of(raised) or raised
            if not isinstance(error, HotshoeError):
                traceback.print_exc()
            # The owner hangs up at bad news, which must not interrupt them.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._control.send(encode(Dead(WireError.wrap(error))))
            return 1
        finally:
            # It ends anyway, and nothing must interrupt that.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if self.is_orphaned:
                self._clean()
        return 0

    def _serve(self, start: Start) -> None:
        check_side(Side(), start.side)
        booted = boot(EngineConfig.from_mapping(start.config))
        path = Path(start.socket_path)
        with (
            contextlib.closing(booted.core),
            contextlib.closing(SocketPort(path, self._control)) as port,
        ):
            self._path = path
            info = replace(booted.info, num_restarts=start.num_restarts)
            self._loop = EngineLoop(booted.core, info, port)
            if start.sleep_level is not None:
                self._loop.lie_down(start.sleep_level)
            if not self._stopping:
                self._control.send(encode(Ready()))
                self._loop.run()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        if self._loop is None:
            raise Stopped
        self._loop.stop()

    def _leave(self) -> None:
        """End as at a SIGTERM, by force if that takes long."""
        self.is_orphaned = True
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ENGINE.orphan_s)
        self._clean()
        os._exit(1)

    def _clean(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def main() -> int:
    """Take the channel, and perhaps the folder, from the command line."""
    child = Child(channel_to_owner(), sys.argv[2] if sys.argv[2:] else None)
    code = child.run()
    if child.is_orphaned:
        os._exit(code)  # what libraries do at exit may take long, and memory is wanted back
    gc.freeze()  # as at the end of the command line: Python would look for garbage several times
    return code


if __name__ == "__main__":
    sys.exit(main())
