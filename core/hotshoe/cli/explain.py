"""`hotshoe explain`: which implementation would serve every slot of a model here, and why.

Reads the model's configuration, never its weights.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import add_engine_flags, engine_config
from hotshoe.cli.session import MIB, reference_lines, show_device
from hotshoe.cli.table import table
from hotshoe.slots import REFERENCE
from hotshoe.slots.show import show_spec

if TYPE_CHECKING:
    from hotshoe.engine.explain import Explanation
    from hotshoe.slots import Decision, Verdict


class Explain:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_engine_flags(parser)

    def run(self, args: Namespace) -> int:
        config = engine_config(args)
        from hotshoe.engine.explain import explain

        explanation = explain(config)
        print(json.dumps(as_json(explanation)) if args.json else as_text(explanation))
        return 0


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON values."""
    facts = asdict(explanation.facts)
    return {
        "config": asdict(explanation.config),
        "facts": {**facts, "features": sorted(facts["features"])},
        "changes": [asdict(change) for change in explanation.changes],
        "decisions": [asdict(decision) for decision in explanation.decisions],
        "memory_bytes": dict(explanation.memory),
    }


def as_text(explanation: Explanation) -> str:
    """Return the explanation for people."""
    facts = explanation.facts
    changes = [(c.field, c.value, c.reason) for c in explanation.changes]
    chosen = [row for decision in explanation.decisions for row in _rows(decision)]
    memory = [(name, f"{size / MIB:,.2f} MiB") for name, size in explanation.memory.items()]
    sections = [
        f"{explanation.config.model} on {facts.platform}: {show_device(facts)}",
        f"features: {' '.join(sorted(facts.features)) or 'none'}",
        _section("decided for you", table(("option", "value", "because"), changes)),
        _section("slots", table(("slot", "specification", "candidate", "verdict"), chosen)),
        _section("memory", table(("use", "size"), memory)),
        *reference_lines(explanation.decisions),
    ]
    return "\n".join(section for section in sections if section)


def _section(title: str, body: str) -> str:
    return f"\n{title}\n{body}" if body else ""


def _rows(decision: Decision) -> list[tuple[str, str, str, str]]:
    why = f": {decision.reason}" if decision.reason else ""
    first = (
        decision.slot,
        show_spec(decision.spec),
        decision.chosen,
        f"chosen, score {decision.score}{why}",
    )
    # The reference always accepts; that it lost is no news.
    others = ((name, verdict) for name, verdict in decision.others if name != REFERENCE)
    return [first, *(("", "", name, _verdict(verdict)) for name, verdict in others)]


def _verdict(verdict: Verdict) -> str:
    if verdict.score is None:
        return f"refused: {verdict.reason}"
    return f"score {verdict.score}" + (f": {verdict.reason}" if verdict.reason else "")
