"""One of several API processes; started by the supervisor alone, see `hotshoe_server.supervisor`.

It connects to the engine when it is told to, and ends at once when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from typing import NoReturn

import msgspec

from hotshoe.config import EngineConfig
from hotshoe.engine.api.async_engine import AsyncEngine
from hotshoe.errors import HotshoeError, UserError
from hotshoe.plugins import PluginManager
from hotshoe_server.command import check_early, describe, find_extensions, with_options
from hotshoe_server.config import ServerConfig
from hotshoe_server.logs import COMMAND, start_logs
from hotshoe_server.serving import Server, Start
from hotshoe_server.state import Shared
from hotshoe_server.supervisor import BEAT_S, HOPELESS, READY, SERVING, Mission


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
        """Say that requests are served, now and for as long as the loop runs that runs this."""
        with contextlib.suppress(OSError):  # it has gone, or is suspended and has enough to read
            self._socket.send(SERVING, socket.MSG_DONTWAIT)
        asyncio.get_running_loop().call_later(BEAT_S, self.say_serving)

    def _watch(self) -> NoReturn:
        with contextlib.suppress(OSError):  # it went before it had read all that was said
            self._lines.read()
        os._exit(1)


def serve(channel: Channel, mission: Mission) -> int:
    """Serve as told; return the exit code.

    Raises:
        HotshoeError: The engine cannot be reached, or something is not as it was when the
            supervisor looked.
    """
    config = ServerConfig(**mission.server)
    say = start_logs(config)
    plugins = PluginManager(disabled=EngineConfig.from_mapping(mission.engine).disable_plugins)
    check_early(config, plugins)  # files may have changed since the supervisor did so
    found = find_extensions(plugins)
    options = [
        extension.options(**mission.options[name])
        for name, extension in found.items()
        if extension.options is not None
    ]

    def load() -> AsyncEngine:
        channel.wait_until_told()
        client = AsyncEngine.connect(mission.engine_socket)
        for line in describe(client):
            tell(line)
        return client

    def tell(line: str) -> None:
        if mission.process == 0:  # as the others would say the same
            say(line)

    server = Server(
        config,
        plugins,
        with_options(found, options),
        load,
        tell,
        Shared(mission.process, mission.shared_file, socket.socket(fileno=mission.store)),
        Start(mission.answers_early, channel.say_serving),
    )
    admin = None if mission.admin is None else socket.socket(fileno=mission.admin)
    return server.run(socket.socket(fileno=mission.listener), admin)


def main() -> int:
    """Take the channel from the command line, and what to do from the channel."""
    channel = Channel(int(sys.argv[1]))
    mission = channel.mission()
    if mission is None:
        return 1
    try:
        return serve(channel, mission)
    except HotshoeError as error:
        COMMAND.error("hotshoe: error: %s", error)
        return HOPELESS if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
