"""One of several API processes; started by the supervisor alone, see `hotshoe_server.supervisor`.

It connects to the engine when it is told to, and ends at once when the supervisor is gone.
"""

from __future__ import annotations

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
from hotshoe_server.supervisor import HOPELESS, READY, Mission


def main() -> int:
    """Serve as told over the channel that the command line names."""
    channel = socket.socket(fileno=int(sys.argv[1])).makefile("rb")
    line = channel.readline()
    if not line:  # the supervisor went before it said anything
        return 1
    mission = msgspec.json.decode(line, type=Mission)
    engine = EngineConfig.from_mapping(mission.engine)
    plugins = PluginManager(disabled=engine.disable_plugins)
    found = find_extensions(plugins)
    options = [
        extension.options(**mission.options[name])
        for name, extension in found.items()
        if extension.options is not None
    ]

    def leave() -> NoReturn:
        """End with the supervisor."""
        os._exit(1)

    def watch() -> None:
        channel.read()
        leave()

    def load() -> AsyncEngine:
        if channel.readline() != READY:
            leave()
        threading.Thread(target=watch, daemon=True).start()
        client = AsyncEngine.connect(mission.engine_socket)
        for line in describe(client):
            tell(line)
        return client

    def tell(line: str) -> None:
        if mission.process == 0:
            say(line)

    shared = Shared(mission.process, mission.shared_file, socket.socket(fileno=mission.store))
    config = ServerConfig(**mission.server)
    server = Server(config, plugins, with_options(found, options), load, tell, shared)
    admin = None if mission.admin is None else socket.socket(fileno=mission.admin)
    try:
        return server.run(socket.socket(fileno=mission.listener), admin)
    except HotshoeError as error:
        say(f"hotshoe: error: {error}")
        return HOPELESS if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
