"""Finds plugins that end or hold up their process, for those who list what is installed.

`os._exit`, a fault in compiled code or an import without end cannot be caught. So another process
goes first: it imports every plugin and asks every platform, and says before each what comes next.
Where it ends, the last one is to blame; then another goes without that one.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotshoe.errors import PluginError
from hotshoe.foreign import ending
from hotshoe.plugins import manager
from hotshoe.plugins.manager import EntryPoint, PluginManager
from hotshoe.plugins.platforms import status_of, usable_platforms

#: One process that goes first has so long.
SURVEY_S = 60.0
PLUGIN, PLATFORM = "plugin", "platform"


@dataclass(slots=True)
class Survey:
    """Plugins and platforms, by name, that end their process, and how."""

    plugins: dict[str, str] = field(default_factory=dict)
    platforms: dict[str, str] = field(default_factory=dict)

    def entry_points(self) -> list[EntryPoint]:
        """Return the installed plugins; those found raise instead of being imported."""
        return [
            replace(point, load=_raising(self.plugins[point.name]))
            if point.name in self.plugins
            else point
            for point in manager.installed_entry_points()
        ]

    def plugin_manager(self) -> PluginManager:
        """Return all plugins, those found recorded as unusable."""
        return PluginManager(self.entry_points())


def survey(platforms: bool = False) -> Survey:
    """Let processes go first until one comes through.

    Args:
        platforms: They ask every platform, too.
    """
    found = Survey()
    while True:
        step, cause = _go_first(found, [PLATFORM] * platforms)
        if cause is None:
            return found
        kind, _, name = step.partition(" ")
        known = {PLUGIN: found.plugins, PLATFORM: found.platforms}.get(kind)
        if known is None or name in known:  # nothing was to blame, or leaving it out did not help
            return found
        known[name] = cause


def _go_first(found: Survey, flags: Sequence[str]) -> tuple[str, str | None]:
    """Return what a process did last, and how it ended; None if it came through."""
    reading, writing = os.pipe()
    known = (*found.plugins, "", *found.platforms, "", *flags)
    words = [sys.executable, "-m", "hotshoe.plugins.survey", str(writing), *known]
    with (
        os.fdopen(reading, encoding="utf-8", errors="replace") as steps,
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[writing],
        ) as process,
    ):
        os.close(writing)
        try:
            code = process.wait(SURVEY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return _last(steps.read()), f"it takes longer than {SURVEY_S:g} s"
        said = steps.read()
    return _last(said), None if code == 0 else _ended(code)


def _last(said: str) -> str:
    return (said.splitlines() or [""])[-1]


def _ended(code: int) -> str:
    how = f"with {ending(code)}" if code >= 0 else ending(code).removeprefix("killed ")
    return f"it ends the process, {how}"


def _raising(cause: str) -> Any:
    def load() -> object:
        raise PluginError(cause)

    return load


def main(words: Sequence[str]) -> int:
    """Go first: words are a descriptor, plugins to leave out, "", platforms to leave out, "", and
    a word if platforms are to be asked."""
    steps, *names = words
    threading.Thread(target=_end_with_reader, args=[int(steps)], daemon=True).start()
    plugins, platforms, flags = (list(part) for part in _parted(names))
    with os.fdopen(int(steps), "w", encoding="utf-8") as told:

        def announced(kind: str, name: str) -> None:
            told.write(f"{kind} {name}\n")
            told.flush()

        def announcing(point: EntryPoint) -> EntryPoint:
            def load() -> object:
                announced(PLUGIN, point.name)
                return point.load()

            return replace(point, load=load)

        points = [announcing(p) for p in manager.installed_entry_points()]
        found = PluginManager([p for p in points if p.name not in plugins])
        announced("hooks", "")
        for name in usable_platforms(found) if flags else ():
            if name not in platforms:
                announced(PLATFORM, name)
                status_of(found, name)
    os._exit(0)  # what a library does at exit is nobody's affair here


def _end_with_reader(descriptor: int) -> None:
    """End this process when nobody reads its steps any more, as an import may never return."""
    poll = select.poll()
    poll.register(descriptor, 0)  # for the end alone
    poll.poll()
    os._exit(1)


def _parted(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut words at those that are empty."""
    first = 0
    for i, word in enumerate((*words, "")):
        if not word:
            yield words[first:i]
            first = i + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
