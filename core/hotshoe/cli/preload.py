"""`hotshoe preload`: keep a model's files in memory, so that engines that start read no disk."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser, Namespace
from pathlib import Path
from threading import Event

from hotshoe.cli.session import say
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.plugins import PluginManager

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

    def run(self, args: Namespace) -> int:
        """See `Command`.

        Raises:
            ConfigError: The limit is no number of bytes, or the folder has no quantized weights.
            CheckpointError, MemoryLimitError: As for `ResidentFiles`.
        """
        limit = half_of_memory() if args.max_memory_bytes is None else args.max_memory_bytes
        if limit < 1:
            raise ConfigError(f"--max-memory-bytes must be 1 or more, not {limit}")
        from hotshoe.engine.start.places import find_model
        from hotshoe.loader.kept import kept_files
        from hotshoe.loader.resident import GIB, ResidentFiles, weight_files

        config = EngineConfig(args.model, revision=args.revision, download_dir=args.download_dir)
        found = find_model(config, PluginManager(), weights=True)
        files = weight_files(found.path)
        folder = args.quantization_cache_dir
        entries = [] if folder is None else kept_files(Path(folder).expanduser().absolute())
        kept = ResidentFiles([*files, *entries], limit)
        size, end = f"{kept.num_bytes / GIB:.2f} GiB", Event()
        previous = {number: signal.signal(number, lambda *_: end.set()) for number in ENDING}
        try:
            for path in files:
                say(f"keeping {path}")
            if entries:
                say(f"keeping {len(entries)} files of quantized weights in {folder}")
            say(f"{size} of memory are kept; SIGTERM or Ctrl-C ends it")
            end.wait()
        finally:
            kept.release()
            for number, handler in previous.items():
                signal.signal(number, handler)
        say(f"let go of {size}")
        return 0


def half_of_memory() -> int:
    """Return half of the bytes of memory that this host has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
