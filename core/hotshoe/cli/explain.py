"""`hotshoe explain`: which implementation would serve every slot of a model here, and why.

Reads the model's configuration and the headers of its weights' files. `--device-facts` asks about
another device.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import add_engine_flags, engine_config
from hotshoe.cli.session import MIB, reference_lines, show_device
from hotshoe.cli.table import table
from hotshoe.errors import ConfigError
from hotshoe.platform import DeviceFacts, Target
from hotshoe.plugins import PluginManager
from hotshoe.slots import COMPOSED, REFERENCE
from hotshoe.slots.show import short_spec, show_verdict
from hotshoe.suggest import did_you_mean

if TYPE_CHECKING:
    from hotshoe.engine.explain.estimate import GroupUse
    from hotshoe.engine.explain.explanation import Explanation
    from hotshoe.engine.explain.fates import WeightFate
    from hotshoe.slots import Decision

#: Characters of a line of names.
WRAP = 100
CACHES_HEADER = ("keeps", "layers", "numbers", "pool", "block", "longest request", "empty places")
FORGONE_HEADER = ("slot", "form", "candidate", "why not")
WEIGHTS_HEADER = (
    *("tensor", "alike", "shape", "in the file", "held by", "part", "kept as"),
    "bytes a weight",
)


class Explain:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--device-facts",
            metavar="FILE",
            help="answer for another device: a JSON file, or the name of a target that the "
            "platform declares",
        )
        parser.add_argument(
            "--weights", action="store_true", help="list every tensor of the checkpoint"
        )
        add_engine_flags(parser)

    def run(self, args: Namespace) -> int:
        config = engine_config(args)
        from hotshoe.engine.explain.explanation import declared_targets, explain

        plugins = PluginManager(disabled=config.disable_plugins)
        recorded = None
        if args.device_facts is not None:
            recorded = read_facts(args.device_facts, lambda: declared_targets(config, plugins))
        explanation = explain(config, plugins, recorded)
        if not args.weights:
            from hotshoe.engine.explain.fates import summary

            explanation = replace(explanation, weights=tuple(summary(explanation.weights)))
        print(json.dumps(as_json(explanation)) if args.json else as_text(explanation))
        return 0


def read_facts(text: str, targets: Callable[[], Sequence[Target]]) -> DeviceFacts:
    """Return recorded facts: from a file, else of the declared target that is meant.

    Args:
        text: Path, name, or a part of one name alone, or one target's architecture.
        targets: Asked only where there is no such file.

    Raises:
        ConfigError: Neither exists, or a field is missing, unknown or of another type.
    """
    path = Path(text)
    if not path.is_file():
        return _target_facts(text, {target.name: target.facts for target in targets()})
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--device-facts: {path} is no JSON file: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--device-facts: {path} must hold a JSON object")
    return _checked_facts(values, path)


def _target_facts(text: str, known: Mapping[str, DeviceFacts]) -> DeviceFacts:
    asked = text.lower()
    meant = [n for n, facts in known.items() if asked in n.lower() or asked == facts.arch.lower()]
    if text in known or len(meant) == 1:
        return known[text if text in known else meant[0]]
    if meant:
        raise ConfigError(f"--device-facts: {text!r} is each of {', '.join(meant)}; name one")
    choices = ", ".join(known) or "the platform declares none"
    raise ConfigError(
        f"--device-facts: no file and no target {text!r}{did_you_mean(text, known)} "
        f"(targets: {choices})"
    )


def _checked_facts(values: dict[str, Any], path: Path) -> DeviceFacts:
    kinds = {"memory_bytes": int, "compute_units": int, "features": list}
    names = [f.name for f in fields(DeviceFacts)]
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ConfigError(f"--device-facts: {path} has an unknown field {name!r}{hint}")
    values = {"features": [], **values}
    for name in names:
        kind = kinds.get(name, str)
        value = values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"--device-facts: {name} in {path} must be {kind.__name__}")
        if isinstance(value, int) and value <= 0:
            raise ConfigError(f"--device-facts: {name} in {path} must be positive")
    if not all(isinstance(feature, str) for feature in values["features"]):
        raise ConfigError(f"--device-facts: features in {path} must be strings")
    return DeviceFacts(**{**values, "features": frozenset(values["features"])})


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON values."""
    facts = asdict(explanation.facts)
    counted = zip(explanation.decisions, *_counts(explanation), strict=True)
    return {
        "config": asdict(explanation.config),
        "facts": {**facts, "features": sorted(facts["features"])},
        "changes": [asdict(change) for change in explanation.changes],
        "decisions": [
            {**asdict(decision), "layers": uses, "step_share": share}
            for decision, uses, share in counted
        ],
        "memory": [asdict(need) for need in explanation.memory],
        "caches": [_group_values(group) for group in explanation.caches],
        "unbuilt": dict(explanation.unbuilt),
        "unasked": dict(explanation.unasked),
        "forgone": [
            {"slot": slot, "form": form, "others": dict(why)}
            for (slot, form), why in explanation.forgone.items()
        ],
        "packages": dict(explanation.packages),
        "numerics": {"hash": _hash(explanation), "of": list(explanation.numerics)},
        "weights": [asdict(fate) for fate in explanation.weights],
        "weights_note": explanation.weights_note,
    }


def _counts(explanation: Explanation) -> tuple[Sequence[int], Sequence[float]]:
    """Return layers and shares of every decision; 0 where nothing was counted."""
    none = len(explanation.decisions)
    return explanation.uses or (0,) * none, explanation.shares or (0.0,) * none


def as_text(explanation: Explanation) -> str:
    """Return the explanation for people."""
    facts = explanation.facts
    changes = [(c.field, c.value, c.reason) for c in explanation.changes]
    counted = zip(explanation.decisions, *_counts(explanation), strict=True)
    chosen = [row for decision, uses, share in counted for row in _rows(decision, uses, share)]
    memory = [(n.use, f"{n.bytes / MIB:,.2f} MiB", n.note) for n in explanation.memory]
    header = ("slot", "layers", "step", "specification", "candidate", "verdict")
    sections = [
        f"{explanation.config.model} on {facts.platform}: {show_device(facts)}",
        f"features: {' '.join(sorted(facts.features)) or 'none'}",
        _section("decided for you", table(("option", "value", "because"), changes)),
        _section("slots", table(header, chosen)),
        *(f"{slot} was not asked: {'; '.join(why)}" for slot, why in explanation.unasked.items()),
        _section("preferred, but not taken", table(FORGONE_HEADER, _forgone_rows(explanation))),
        f"\nnumerics {_hash(explanation)}" * bool(explanation.numerics),
        _section("packages", table(("package", "candidates"), _package_rows(explanation))),
        _section("weights", table(WEIGHTS_HEADER, [_weight_row(w) for w in explanation.weights])),
        explanation.weights_note,
        _section("memory", table(("use", "size", "how"), memory)),
        _section("cache groups", table(CACHES_HEADER, _group_rows(explanation.caches))),
        *reference_lines(explanation.decisions),
        *_cost_lines(explanation),
        *(
            f"chosen there, but not to be built here: {', '.join(names)} ({cause})"
            for cause, names in explanation.unbuilt.items()
        ),
    ]
    return "\n".join(section for section in sections if section)


def _forgone_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """Say of preferred forms why each candidate does not take them."""
    rows: list[tuple[str, ...]] = []
    for about, why in explanation.forgone.items():
        reasons = why or [("", "the platform offers nothing")]
        rows += [((*about, *one) if one is reasons[0] else ("", "", *one)) for one in reasons]
    return rows


def _hash(explanation: Explanation) -> str:
    from hotshoe.engine.explain.numerics import numerics_hash

    return numerics_hash(explanation.numerics) if explanation.numerics else ""


def _package_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Say which package each candidate comes with."""
    by_package: dict[str, list[str]] = {}
    for name, package in explanation.packages.items():
        by_package.setdefault(package, []).append(name)
    return [
        (package * (number == 0), line)
        for package, names in sorted(by_package.items())
        for number, line in enumerate(wrap(", ".join(names), WRAP, break_on_hyphens=False))
    ]


def _weight_row(fate: WeightFate) -> tuple[object, ...]:
    """Say what became of a tensor; how many are alike only where there are several."""
    shape = " x ".join(map(str, fate.shape))
    count = fate.count if fate.count > 1 else ""
    size = "" if fate.weight_bytes is None else f"{fate.weight_bytes:.3g}"
    return fate.name, count, shape, fate.stored, fate.holder, fate.part, fate.form, size


def _group_values(group: GroupUse) -> dict[str, Any]:
    sizes = {"request_bytes": group.request_bytes, "wasted_bytes": group.wasted_bytes}
    return asdict(group) | sizes


def _group_rows(groups: Sequence[GroupUse]) -> list[tuple[object, ...]]:
    return [
        (
            group.kind if group.window is None else f"{group.kind} of {group.window} tokens",
            len(group.layers),
            _ranges(group.layers),
            group.pool,
            f"{group.block_tokens} tokens, {group.block_bytes} bytes",
            f"{group.request_blocks} blocks, {group.request_bytes / MIB:,.2f} MiB",
            f"{group.empty_places} of {group.places}, {group.wasted_bytes / MIB:,.2f} MiB",
        )
        for group in groups
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Print ascending numbers, runs of them as first and last."""
    starts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1] + 1]
    ends = [*(i - 1 for i in starts[1:]), len(numbers) - 1]
    pairs = ((numbers[a], numbers[b]) for a, b in zip(starts, ends, strict=True))
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in pairs)


def _cost_lines(explanation: Explanation) -> list[str]:
    """Say how much of a decode step runs on references."""
    share = sum(
        share
        for decision, share in zip(explanation.decisions, _counts(explanation)[1], strict=True)
        if not decision.native
    )
    if not share:
        return []
    return [f"references move {share:.1%} of the bytes of a decode step, and are slow at it"]


def _section(title: str, body: str) -> str:
    return f"\n{title}\n{body}" if body else ""


def _rows(decision: Decision, uses: int, share: float) -> list[tuple[object, ...]]:
    why = f": {decision.reason}" if decision.reason else ""
    first = (
        *(decision.slot, uses or "", f"{share:.1%}" if share else ""),
        short_spec(decision.spec),
        decision.chosen,
        f"chosen, score {decision.score}{why}",
    )
    # What core has always accepts; that it lost is no news.
    core = (REFERENCE, COMPOSED)
    others = ((name, verdict) for name, verdict in decision.others if name not in core)
    return [first, *(("", "", "", "", name, show_verdict(verdict)) for name, verdict in others)]
