"""`hotshoe preload`: keep a model's files in memory, and a process that has imported everything.

Commands are forked from that. So engines that start read no disk and import nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from hotshoe.cli.keeper import place
from hotshoe.cli.session import say
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, HotshoeError
from hotshoe.host import physical_memory
from hotshoe.plugins import PluginManager

if TYPE_CHECKING:
    from hotshoe.cli.keeper.forking import ImportKeeper
    from hotshoe.cli.keeper.request import Request
    from hotshoe.loader.resident import ResidentFiles

ENDING = (signal.SIGTERM, signal.SIGINT)


class Preload:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="directory, file or name, as for serve")
        parser.add_argument(
            "--max-memory-bytes",
            type=int,
            metavar="N",
            help="most memory that the files may take (default: half of the host's)",
        )
        parser.add_argument(
            "--quantization-cache-dir",
            metavar="DIR",
            help="as for serve: keep the weights that it has there as well",
        )
        parser.add_argument("--revision", metavar="TEXT", help="as for serve")
        parser.add_argument("--download-dir", metavar="TEXT", help="as for serve")
        parser.add_argument(
            "--platform",
            default="auto",
            metavar="TEXT",
            help="as for serve: what is imported (default: auto)",
        )
        parser.add_argument(
            "--imports",
            action=BooleanOptionalAction,
            default=True,
            help="also fork commands of this user from a process that has imported what they need "
            "(default: True)",
        )

    def run(self, args: Namespace) -> int:
        """See `Command`.

        Raises:
            ConfigError: The limit is no number of bytes, or the folder has no quantized weights.
            CheckpointError, MemoryLimitError: As for `ResidentFiles`.
        """
        begin = None
        if args.imports and hasattr(socket, "SO_PEERCRED"):  # before anything is imported
            begin = place.digest(), dict(os.environ)  # noqa: TID251 - compared, not read
        names = "revision", "download_dir", "platform"
        config = EngineConfig(args.model, **{name: getattr(args, name) for name in names})
        plugins, end = PluginManager(), Event()
        with contextlib.closing(_files(args, config, plugins)) as kept, _ending(end):
            keeper = None if begin is None else _keeper(config, plugins, *begin)
            say(f"{kept.size} of memory are kept; SIGTERM or Ctrl-C ends it")
            request = _wait(keeper, end)
        if request is not None:  # this process was forked from the one that keeps
            return request.run()
        say(f"let go of {kept.size}")
        return 0


def _files(args: Namespace, config: EngineConfig, plugins: PluginManager) -> ResidentFiles:
    """Keep the files that are asked for, and say so.

    Raises:
        ConfigError, CheckpointError, MemoryLimitError: As for `Preload.run`.
    """
    limit = half_of_memory() if args.max_memory_bytes is None else args.max_memory_bytes
    if limit < 1:
        raise ConfigError(f"--max-memory-bytes must be 1 or more, not {limit}")
    from hotshoe.engine.start.places import find_model
    from hotshoe.loader.kept import kept_files
    from hotshoe.loader.resident import ResidentFiles, weight_files

    files = weight_files(find_model(config, plugins, weights=True).path)
    folder = args.quantization_cache_dir
    entries = [] if folder is None else kept_files(Path(folder).expanduser().absolute())
    kept = ResidentFiles([*files, *entries], limit)
    for path in files:
        say(f"keeping {path}")
    if entries:
        say(f"keeping {len(entries)} files of quantized weights in {folder}")
    return kept


def _keeper(
    config: EngineConfig, plugins: PluginManager, name: str, environment: dict[str, str]
) -> ImportKeeper | None:
    """Import everything; return what forks, None where that cannot be, and say why."""
    from hotshoe.cli.keeper.forking import ImportKeeper
    from hotshoe.cli.keeper.imports import import_commands
    from hotshoe.engine.api.ahead import import_model
    from hotshoe.runner.forkable import hindrance

    device = None
    import_commands(plugins)
    try:
        device = import_model(config, plugins)
    except HotshoeError as error:
        say(f"only what all models need is imported: {error}")
    try:
        if why := hindrance(device):
            raise ConfigError(why)
        keeper = ImportKeeper(name, environment)
    except ConfigError as error:
        say(f"imports are not kept: {error}")
        return None
    say(f"keeping imports for: {', '.join(place.COMMANDS)}")
    return keeper


@contextlib.contextmanager
def _ending(end: Event) -> Iterator[None]:
    """Let signals set an event."""
    previous = {number: signal.signal(number, lambda *_: end.set()) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(keeper: ImportKeeper | None, end: Event) -> Request | None:
    """Fork, where that can be, until a signal comes; return what a fork has to become."""
    if keeper is None:
        end.wait()
        return None
    with contextlib.closing(keeper):
        return keeper.serve(end, say)


def half_of_memory() -> int:
    """Return half of the bytes of memory that this host has."""
    return physical_memory() // 2
