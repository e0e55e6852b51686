"""`hotshoe plugins`: the plugins of this installation, their state, and every name they offer."""

from __future__ import annotations

import json
import textwrap
from argparse import ArgumentParser, Namespace
from typing import Any

from hotshoe.cli.table import table
from hotshoe.plugins import PluginManager
from hotshoe.plugins.survey import survey

# What a hook's names are called here; `hotshoe_candidates` has a table of its own.
OFFERS = {
    "platforms": "hotshoe_platforms",
    "models": "hotshoe_named_models",
    "model sources": "hotshoe_model_sources",
    "adapter resolvers": "hotshoe_adapter_resolvers",
    "model files": "hotshoe_model_files",
    "architectures": "hotshoe_models",
    "model implementations": "hotshoe_model_impls",
    "model lengths": "hotshoe_model_lengths",
    "encoders": "hotshoe_encoders",
    "quantizations": "hotshoe_quantizations",
    "weight formats": "hotshoe_weight_formats",
    "format examples": "hotshoe_format_examples",
    "slots": "hotshoe_slots",
    "commands": "hotshoe_commands",
    "executors": "hotshoe_executors",
    "proposers": "hotshoe_proposers",
    "heads": "hotshoe_heads",
    "logits processors": "hotshoe_logits_processors",
    "grammar backends": "hotshoe_grammars",
    "tool parsers": "hotshoe_tool_parsers",
    "reasoning parsers": "hotshoe_reasoning_parsers",
    "chat templates": "hotshoe_chat_templates",
    "server extensions": "hotshoe_server_extensions",
}


#: Of a line of names, in characters.
WIDTH = 100


class Plugins:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: Namespace) -> int:
        manager = survey().plugin_manager()
        # Asking may show that a plugin is broken, so it comes first.
        offers = {kind: sorted(manager.mapping(hook)) for kind, hook in OFFERS.items()}
        packs = packed(manager)
        conflicts = [text for hook in OFFERS.values() for text in manager.conflicts(hook).values()]
        plugins: list[dict[str, Any]] = [
            {
                "plugin": record.name,
                "distribution": record.distribution,
                "version": record.version,
                "hooks": [hook.removeprefix("hotshoe_") for hook in record.hooks],
                "error": record.error,
                "warning": record.warning,
            }
            for record in manager.records
        ]
        if args.json:
            found = {"plugins": plugins, "offers": offers, "packs": packs, "conflicts": conflicts}
            print(json.dumps(found))
            return 0
        rows = [
            (
                *(p["plugin"], p["distribution"], p["version"]),
                p["error"] or p["warning"] or ", ".join(p["hooks"]),
            )
            for p in plugins
        ]
        print(table(("plugin", "distribution", "version", "hooks, or what is wrong"), rows))
        print()
        print(
            table(("offered", "names"), [row for offer in offers.items() for row in _rows(*offer)])
        )
        if packs:
            print()
            lines = [
                (p["plugin"], p["package"], p["platform"], ", ".join(p["candidates"]))
                for p in packs
            ]
            print(table(("pack", "package", "platform", "candidates"), lines))
        for conflict in conflicts:
            print(f"\n{conflict}")
        return 0


def _rows(kind: str, names: list[str]) -> list[tuple[str, str]]:
    """Return rows of a kind and its names; hundreds of names take several."""
    lines = textwrap.wrap(", ".join(names), WIDTH, break_long_words=False) or [""]
    return [(kind if number == 0 else "", line) for number, line in enumerate(lines)]


def packed(manager: PluginManager) -> list[dict[str, Any]]:
    """Return what kernel packs offer beside each platform, as `slot/name`."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for platform in manager.mapping(OFFERS["platforms"]):
        for record, candidate in manager.sequence("hotshoe_candidates", platform=platform):
            package = f"{record.distribution} {record.version}"
            name = f"{getattr(candidate, 'slot', '?')}/{getattr(candidate, 'name', candidate)}"
            found.setdefault((record.name, package, platform), []).append(name)
    return [
        {"plugin": plugin, "package": package, "platform": platform, "candidates": names}
        for (plugin, package, platform), names in sorted(found.items())
    ]
