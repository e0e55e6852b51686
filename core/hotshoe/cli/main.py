"""Entry point of `hotshoe`: finds the command among the plugins, runs it, turns errors into words.

Exit codes: 0 done, 1 the engine failed, 2 the user's mistake, 130 interrupted. Only the named
command's module is imported, and help never imports torch.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotshoe import __version__
from hotshoe.cli.command import Command, CommandEntry
from hotshoe.cli.parser import Parser, hyphenated, listed
from hotshoe.errors import ConfigError, HotshoeError, PluginError, UserError, lack_of
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin, own_entry_points
from hotshoe.suggest import did_you_mean

HOOK = "hotshoe_commands"
#: What a disk says that takes no more of what is printed.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_DISABLE = "--disable-plugins"
_CONFIG = "--config"
_HELP = ("-h", "--help")
#: Commands of core that list plugins, and so are there though one ends the process at import.
LISTING = ("doctor", "platforms", "plugins")
#: Which distribution brings a command, for those who miss it.
BROUGHT_BY = {
    "bench agent": "hotshoe-bench",
    "bench serve": "hotshoe-bench",
    "conformance": "hotshoe-conformance",
    "new-platform": "hotshoe-conformance",
    "run-batch": "hotshoe-server",
    "serve": "hotshoe-server",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in words
    if show_traceback:
        words.remove("--traceback")
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except HotshoeError as error:
        if show_traceback:
            raise
        print(f"hotshoe: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except ModuleNotFoundError as error:
        if show_traceback or error.name is None or error.name.startswith("hotshoe"):
            raise
        print(f"hotshoe: error: {error}; install what this command needs", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        return int(getattr(error, "code", 130))  # an interruption may be the wish to end well
    except BrokenPipeError:  # the reader went away
        _give_up_output()
        return 141
    except BaseException as error:
        lack = lack_of(error)
        if lack is not None and not show_traceback:
            print(f"hotshoe: error: {lack}", file=sys.stderr)
            return 2
        if not isinstance(error, OSError):
            raise
        if show_traceback or error.filename is not None or error.errno not in FULL:
            raise
        _give_up_output()
        print(f"hotshoe: error: cannot write any more: {error.strerror}", file=sys.stderr)
        return 1


def _give_up_output() -> None:
    """Keep the interpreter from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"hotshoe {__version__}")
        return 0
    if words and words[0] in LISTING:
        disabled, plugins = [], PluginManager(own_entry_points())
    else:
        disabled = _disabled(words)
        plugins = PluginManager(disabled=disabled)
    commands = plugins.mapping(HOOK)
    if not words or words[0] in _HELP:
        print(_overview("hotshoe", commands))
        return 0
    name = next((n for n in (" ".join(words[:2]), words[0]) if n in commands), None)
    if name is not None:
        # A module that is missing is named below, with what to do.
        with blaming_plugin(plugins, HOOK, name, passing=ModuleNotFoundError):
            command: Command = resolve_lazy(commands[name].target)()
        words = words[len(name.split()) :]
        return _call(name, command, commands[name].help, words, disabled)
    group = {n: entry for n, entry in commands.items() if n.startswith(f"{words[0]} ")}
    if group and (len(words) == 1 or words[1] in _HELP):
        print(_overview(f"hotshoe {words[0]}", group))
        return 0
    conflicts = plugins.conflicts(HOOK)
    for wanted in (" ".join(words[:2]), words[0]):
        if wanted in conflicts:
            raise PluginError(conflicts[wanted])
    raise ConfigError(_unknown(words, group or commands, plugins))


def _disabled(words: Sequence[str]) -> list[str]:
    """Return the plugins that a command line and its file leave out; they are never imported.

    Everything is parsed again by the command; one that does not know the flags refuses them.

    Raises:
        ConfigError: The file is unreadable.
    """
    found = [name for value in _values(words, _DISABLE) for name in listed(value, str) or [value]]
    for path in _values(words, _CONFIG):
        from hotshoe.cli.options import disabled_in  # needs much, for few commands

        found = [*disabled_in(Path(path)), *found]
    return found


def _values(words: Sequence[str], flag: str) -> list[str]:
    """Return what stands behind a flag, as `--flag VALUE` or `--flag=VALUE`."""
    words = [hyphenated(word) for word in words]
    inside = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    return inside + [value for word, value in itertools.pairwise(words) if word == flag]


def _call(
    name: str, command: Command, text: str, words: Sequence[str], disabled: Sequence[str]
) -> int:
    parser = Parser(f"hotshoe {name}", text)
    command.add_arguments(parser)
    args = parser.parse(words)
    late = [n for n in getattr(args, "disable_plugins", ()) if n not in disabled]
    if late:  # by now they have been imported
        raise ConfigError(f"give each plugin a flag of its own: {_DISABLE} {late[0]}")
    return command.run(args)


def _overview(prog: str, commands: Mapping[str, CommandEntry]) -> str:
    width = max(map(len, commands), default=0)
    lines = [f"usage: {prog} COMMAND ...", ""]
    if prog == "hotshoe":
        usage = "usage: hotshoe [--version] [--traceback] COMMAND ..."
        lines = [usage, "", "LLM inference on any hardware", ""]
    lines += [f"  {name:{width}}  {entry.help}" for name, entry in sorted(commands.items())]
    return "\n".join([*lines, "", "`hotshoe COMMAND --help` explains each."])


def _unknown(words: list[str], known: Mapping[str, CommandEntry], plugins: PluginManager) -> str:
    grouped = all(n.startswith(f"{words[0]} ") for n in known)
    word = " ".join(words[: 2 if grouped else 1])
    kind = "flag" if word.startswith("-") else "command"
    firsts = known if grouped else {n.partition(" ")[0] for n in known} | {"--version", "--help"}
    names = ", ".join(sorted(n for n in firsts if not n.startswith("-")))
    hint = did_you_mean(word, firsts)
    if word in BROUGHT_BY:
        hint = f"; install {BROUGHT_BY[word]}, which brings it"
    return f"unknown {kind} {word!r}{hint} (commands: {names}){plugins.broken_note()}"
