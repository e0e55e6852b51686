"""One of several API processes; started by the supervisor alone, see `hotshoe_server.supervisor`.

It connects to the engine when it is told to, and ends at once when the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import NoReturn

import msgspec

from hotshoe.cli.session import say
from hotshoe.config import EngineConfig
from hotshoe.engine.async_engine import AsyncEngine
from hotshoe.errors import HotshoeError, UserError
from hotshoe.plugins import PluginManager
from hotshoe_server.command import describe, find_extensions, with_options
from hotshoe_server.config import ServerConfig
from hotshoe_server.serving import Server
from hotshoe_server.state import Shared
from hotshoe_server.supervisor import HOPELESS, READY, SERVING, Mission


class Channel:
    """What leads to the supervisor, whose end ends this process.

    Args:
        fd: Descriptor of a connected socket.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("rb")

    def mission(self) -> Mission | None:
        """Return what this process is told; None if the supervisor went before it said anything."""
        line = self._lines.readline()
        return msgspec.json.decode(line, type=Mission) if line else None

    def wait_until_told(self) -> None:
        """Wait until loading may begin."""
        if self._lines.readline() != READY:
            os._exit(1)
        threading.Thread(target=self._watch, daemon=True).start()

    def say_serving(self) -> None:
        """Say that requests are served."""
        with contextlib.suppress(OSError):  # it has gone, which `_watch` sees too
            self._socket.sendall(SERVING)

    def _watch(self) -> NoReturn:
        with contextlib.suppress(OSError):  # it went before it had read all that was said
            self._lines.read()
        os._exit(1)


def main() -> int:
    """Serve as told over the channel that the command line names."""
    channel = Channel(int(sys.argv[1]))
    mission = channel.mission()
    if mission is None:
        return 1
    engine_socket, is_first = mission.engine_socket, mission.process == 0
    plugins = PluginManager(disabled=EngineConfig.from_mapping(mission.engine).disable_plugins)
    found = find_extensions(plugins)
    options = [
        extension.options(**mission.options[name])
        for name, extension in found.items()
        if extension.options is not None
    ]

    def load() -> AsyncEngine:
        channel.wait_until_told()
        client = AsyncEngine.connect(engine_socket)
        for line in describe(client):
            tell(line)
        return client

    def tell(line: str) -> None:
        if is_first:
            say(line)

    shared = Shared(mission.process, mission.shared_file, socket.socket(fileno=mission.store))
    server = Server(
        ServerConfig(**mission.server),
        plugins,
        with_options(found, options),
        load,
        tell,
        shared,
        mission.answers_early,
        channel.say_serving,
    )
    admin = None if mission.admin is None else socket.socket(fileno=mission.admin)
    try:
        return server.run(socket.socket(fileno=mission.listener), admin)
    except HotshoeError as error:
        say(f"hotshoe: error: {error}")
        return HOPELESS if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
