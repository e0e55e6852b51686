"""Write what is generated from the code: pages of docs/reference and the frozen public surface.

`make reference` runs it; tests/architecture fails when a file here is not what it would write, so
that every change of a flag, field, hook or slot is seen in a diff.
"""

import argparse
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import FunctionType
from typing import Any

import hotshoe
from hotshoe.cli.main import HOOK
from hotshoe.cli.options import ENGINE_GROUPS, add_engine_flags, add_sampling_flags
from hotshoe.cli.parser import Parser
from hotshoe.config import EngineConfig
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts, Platform
from hotshoe.plugins import PluginManager, hookspecs
from hotshoe.slots import SLOTS, operations
from hotshoe.types import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
#: What argparse calls the arguments of no group of ours.
PLAIN_TITLES = ("positional arguments", "options")
NOTE = "<!-- Written by tools/make_reference.py; `make reference` writes it anew. -->"


def pages() -> dict[Path, str]:
    """Return every generated file and its text."""
    return {
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "docs/reference/config.md": config_page(),
        ROOT / "docs/reference/hooks.md": hooks_page(),
        ROOT / "docs/reference/slots.md": slots_page(),
        ROOT / "tests/architecture/surface.txt": surface(),
    }


def parsers() -> Iterator[Parser]:
    """Yield the parser of every command of this repository's distributions."""
    records = PluginManager().records
    foreign = [r.name for r in records if r.distribution.partition("-")[0] != "hotshoe"]
    for name, entry in sorted(PluginManager(disabled=foreign).mapping(HOOK).items()):
        parser = Parser(f"hotshoe {name}", entry.help)
        resolve_lazy(entry.target)().add_arguments(parser)
        yield parser


def shared() -> dict[str, list[argparse.Action]]:
    """Return the groups of flags that several commands have: engine and sampling."""
    parser = Parser("", "")
    add_engine_flags(parser)
    add_sampling_flags(parser)
    return {title: a for title, a in groups(parser) if title in (*ENGINE_GROUPS, "sampling")}


def own(parser: Parser) -> tuple[dict[str, list[argparse.Action]], str]:
    """Return a command's own arguments by group, and words for the shared ones that it takes too.

    The first group has no title.
    """
    titles = [title for title, _ in groups(parser)]
    kinds = [kind for kind in ("model", "sampling") if kind in titles]
    words = " and ".join({"model": "engine flags", "sampling": "sampling flags"}[k] for k in kinds)
    found: dict[str, list[argparse.Action]] = {"": []}
    for title, actions in groups(parser):
        if title not in shared():
            found.setdefault("" if title in PLAIN_TITLES else title, []).extend(actions)
    return found, words


def groups(parser: Parser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Yield a parser's groups that are not empty, without `--help`."""
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if "--help" not in a.option_strings]
        if actions:
            yield group.title or "", actions


def form(action: argparse.Action) -> str:
    """Return an argument as one would type it."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return ", ".join(action.option_strings)
    value = "|".join(map(str, action.choices)) if action.choices else action.metavar
    names = ", ".join(action.option_strings)
    if action.nargs == 0 or value is None:
        return names
    if not names:
        return str(value) if action.required else f"[{value}]"
    return f"{names} {value}"


def cli_page() -> str:
    """Every command with its flags."""
    lines = [
        "# Command line",
        NOTE,
        "",
        "Engine and sampling flags are the fields of [the configuration](config.md) and of the",
        "request's parameters; engine flags that are not given come from `--config`.",
        "Exit codes: 0 done, 1 the engine failed, 2 a mistake in the call, 130 interrupted.",
        "With `--traceback`, any command shows where an error was raised.",
    ]
    for parser in parsers():
        arguments, more = own(parser)
        lines += ["", f"## {parser.prog}", "", _sentence(parser.description or "")]
        lines += [f"Takes {more} too."] * bool(more)
        for title, found in arguments.items():
            if found:
                lines += ["", f"### {parser.prog}: {title}"] * bool(title) + _arguments(found)
    for title, actions in shared().items():
        lines += ["", f"## {'Flags' if title == 'sampling' else 'Engine flags'}: {title}"]
        lines += _arguments(actions)
    return "\n".join(lines) + "\n"


def _arguments(actions: list[argparse.Action]) -> list[str]:
    rows = [f"| `{_cell(form(a))}` | {_cell(_help(a))} |" for a in actions]
    return ["", "| argument | meaning |", "|---|---|", *rows]


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default, "metavar": action.metavar}


def config_page() -> str:
    """Every field of EngineConfig."""
    hints = typing.get_type_hints(EngineConfig)
    lines = [
        "# Configuration",
        NOTE,
        "",
        "A field is a keyword of `LLM(...)`, a line of a YAML file given by `--config`, and a flag",
        "of the commands (`max_num_seqs` is `--max-num-seqs`; `model` is the first argument).",
        "",
        "| field | type | default | allowed | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in fields(EngineConfig):
        data = field.metadata
        allowed = ", ".join(data["choices"] or ())
        if data["low"] is not None:
            allowed = f"{data['low']} to {data['high']}" if data["high"] else f"≥ {data['low']}"
        default = "{}" if hints[field.name] is dict else repr(_default(field))
        row = (f"`{field.name}`", _type(hints[field.name]), f"`{default}`", allowed, data["help"])
        lines.append("| " + " | ".join(_cell(cell) for cell in row) + " |")
    return "\n".join(lines) + "\n"


def hooks() -> dict[str, FunctionType]:
    """Return the hook specifications by name."""
    members = inspect.getmembers(hookspecs, inspect.isfunction)
    return {name: hook for name, hook in members if hook.__module__ == hookspecs.__name__}


def hooks_page() -> str:
    """Every hook with its signature."""
    lines = [
        "# Hooks",
        NOTE,
        "",
        f"Hook API version {hookspecs.HOOK_API}. A plugin is an entry point of group `hotshoe`",
        "that states `HOTSHOE_HOOK_API` and implements some of these functions, marked",
        "`@hotshoe.plugins.hookimpl`. Hooks run at start-up only.",
    ]
    for name, hook in hooks().items():
        line = f"def {name}{_signature(hook)}: ..."
        lines += ["", f"## {name}", "", "```python", line, "```", ""]
        lines.append(inspect.getdoc(hook) or "")
    return "\n".join(lines) + "\n"


def slots_page() -> str:
    """Every slot with its specification, and every call signature."""
    lines = [
        "# Slots",
        NOTE,
        "",
        "A candidate answers a specification with a verdict; the chosen one builds an operation",
        "with the signature listed below.",
    ]
    for slot in SLOTS.values():
        lines += ["", f"## {slot.name}", "", _sentence(slot.doc)]
        lines += ["", f"Specification `{slot.spec_type.__name__}`:", "", "```text"]
        lines += [inspect.getdoc(slot.spec_type) or "", "", *_fields(slot.spec_type), "```"]
    lines += ["", "## Operations"]
    for name, operation in inspect.getmembers(operations, inspect.isclass):
        if operation.__module__ != operations.__name__:
            continue
        lines += ["", f"### {name}", "", "```text", inspect.getdoc(operation) or ""]
        for method, function in inspect.getmembers(operation, inspect.isfunction):
            if method == "__call__" or not method.startswith("_"):
                lines += ["", f"{method}{_signature(function)}"]
                text = textwrap.indent(inspect.getdoc(function) or "", "    ")
                lines += text.split("\n")
        lines.append("```")
    return "\n".join(lines) + "\n"


def surface() -> str:
    """Everything that users, scripts and plugins hold on to, a line each."""
    lines = ["# The public surface. A change here is a change for users: say so in CHANGELOG.md."]
    lines += ["", "[hotshoe]", *hotshoe.__all__]
    lines += ["", "[EngineConfig]", *_fields(EngineConfig)]
    lines += ["", "[SamplingParams]", *_fields(SamplingParams)]
    for parser in parsers():
        arguments, more = own(parser)
        lines += ["", f"[{parser.prog}]", *(form(a) for found in arguments.values() for a in found)]
        lines += [f"({more})"] * bool(more)
    for title, actions in shared().items():
        lines += ["", f"[flags: {title}]", *map(form, actions)]
    lines += ["", f"[hooks, API {hookspecs.HOOK_API}]"]
    lines += [f"{name}{_signature(hook)}" for name, hook in hooks().items()]
    lines += ["", "[Platform]", *(f"{n}{_signature(f)}" for n, f in methods(Platform).items())]
    lines += ["", "[DeviceFacts]", *_fields(DeviceFacts)]
    for slot in SLOTS.values():
        lines += ["", f"[slot {slot.name}: {slot.spec_type.__name__}]", *_fields(slot.spec_type)]
    return "\n".join(lines) + "\n"


def methods(contract: type) -> dict[str, FunctionType]:
    """Return a contract's public methods."""
    members = inspect.getmembers(contract, inspect.isfunction)
    return {name: method for name, method in members if not name.startswith("_")}


def _fields(record: type) -> list[str]:
    hints = typing.get_type_hints(record)
    return [f"{f.name}: {_type(hints[f.name])}{_shown_default(f)}" for f in fields(record)]


def _shown_default(field: Any) -> str:
    none = field.default is MISSING and field.default_factory is MISSING
    return "" if none else f" = {_default(field)!r}"


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is MISSING else field.default


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    for prefix in ("typing.", "collections.abc.", "hotshoe.slots.specs."):
        text = text.replace(prefix, "")
    return text


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the files; say which ones changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
