"""One of several API processes; started by the supervisor alone, see `hotshoe_server.supervisor`.

It connects to the engine when it is told to, and ends at once when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from functools import partial

import msgspec

from hotshoe.config import EngineConfig
from hotshoe.engine.api.async_engine import AsyncEngine
from hotshoe.engine.wire.children import channel_to_owner, when_orphaned
from hotshoe.engine.wire.connection import Connection
from hotshoe.errors import HotshoeError, UserError
from hotshoe.plugins import PluginManager
from hotshoe_server.command import check_early, describe, find_extensions, with_options
from hotshoe_server.config import ServerConfig
from hotshoe_server.logs import COMMAND, start_logs
from hotshoe_server.serving import Server, Start
from hotshoe_server.state import Shared
from hotshoe_server.supervisor import HOPELESS, READY, SERVING, TIMES, Mission


def say_serving(channel: Connection) -> None:
    """Say that requests are served, now and for as long as the loop runs that runs this."""
    channel.flush()
    if not channel.has_backlog:  # a supervisor that is suspended has enough to read
        channel.send(SERVING)
    asyncio.get_running_loop().call_later(TIMES.beat_s, say_serving, channel)


def serve(channel: Connection, mission: Mission) -> int:
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
        if channel.fetch() != READY:
            os._exit(1)
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
        Start(mission.answers_early, partial(say_serving, channel)),
    )
    admin = None if mission.admin is None else socket.socket(fileno=mission.admin)
    return server.run(socket.socket(fileno=mission.listener), admin)


def main() -> int:
    """Take the channel from the command line, and what to do from the channel."""
    channel = channel_to_owner()
    message = channel.fetch()
    if message is None:  # the supervisor went before it said anything
        return 1
    mission = msgspec.json.decode(message, type=Mission)
    when_orphaned(channel, lambda: os._exit(1))
    try:
        return serve(channel, mission)
    except HotshoeError as error:
        COMMAND.error("hotshoe: error: %s", error)
        return HOPELESS if isinstance(error, UserError) else 1
    finally:
        gc.freeze()  # as at the end of the command line: Python would look for garbage


if __name__ == "__main__":
    sys.exit(main())
