"""Opens the engine for a command, and says on stderr what start-up decided.

Slots that run on their plain reference are always named, so that no fallback is silent. Used by
`generate`, `chat` and `bench`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import engine_config
from hotshoe.host import leave_garbage

if TYPE_CHECKING:
    from hotshoe.engine.api.llm import LLM
    from hotshoe.platform import DeviceFacts
    from hotshoe.slots import Decision
    from hotshoe.types import RequestOutput

MIB = 2**20


@contextmanager
def open_llm(args: Namespace, quiet: bool = False, **overrides: Any) -> Iterator[LLM]:
    """Build the engine that the flags describe, report on it, and close it in the end.

    Raises:
        UserError: The engine cannot be built as asked.
    """
    config = engine_config(args, **overrides)
    from hotshoe.engine.api.llm import LLM

    with LLM(config=config) as llm:
        if not quiet:
            for line in describe(llm):
                say(line)
        yield llm
        leave_garbage()


def say(line: str) -> None:
    """Print a line for people; stdout stays free for what was asked for.

    Work goes on where nobody can read it any more, or a disk is full.
    """
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def describe(llm: LLM) -> list[str]:
    """Return what start-up took, chose and could not serve natively, a line each."""
    config = llm.config
    sizes = ", ".join(f"{name} {size / MIB:,.0f} MiB" for name, size in llm.memory.items())
    report = llm.engine.core.info.report
    told = ", ".join(f"{name} {_shown(value)}" for name, value in report.items())
    lines = [
        f"{config.model} on {config.platform} ({config.dtype}): {sizes}",
        f"ready in {sum(llm.startup.values()):.2f} s: {phases(llm.startup)}",
    ]
    if told:
        lines.insert(1, f"platform: {told}")
    records = llm.engine.setup.plugins.records
    lines += [f"plugin {r.name} is broken: {r.error}" for r in records if r.error]
    lines += [r.warning for r in records if r.warning]
    return lines + reference_lines(llm.decisions)


def _shown(value: object) -> str:
    """Write what a platform tells; what ranks tell of themselves stands side by side."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    numbers = all(isinstance(entry, int) for entry in value)
    return ("," if numbers else " | ").join(map(_shown, value))


def phases(startup: Mapping[str, float]) -> str:
    """Join start-up phases and their seconds."""
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in startup.items())


def reference_lines(decisions: Iterable[Decision]) -> list[str]:
    """Name the specifications that no native candidate serves, one line for each slot, and the
    candidates that are defective."""
    from hotshoe.slots.show import show_spec  # imports all slots, for commands that have no engine

    by_slot: dict[str, list[str]] = {}
    defects: dict[str, None] = {}
    for decision in decisions:
        for name, verdict in decision.others:
            if verdict.defect:
                defects[f"slot {decision.slot}: {name} is defective: {verdict.reason}"] = None
        if not decision.native:
            by_slot.setdefault(decision.slot, []).append(show_spec(decision.spec))
    return [
        f"slot {slot} runs on its plain reference for {'; '.join(specs)}"
        for slot, specs in by_slot.items()
    ] + list(defects)


def failures(outputs: Iterable[RequestOutput]) -> list[str]:
    """Return the reasons of the sequences that ended in an error."""
    return [
        f"request {number}: {sequence.error}"
        for number, output in enumerate(outputs, 1)
        for sequence in output.outputs
        if sequence.error is not None
    ]


def report_failures(reasons: Iterable[str]) -> int:
    """Print why requests failed and return the exit code: 1 if any did."""
    code = 0
    for reason in reasons:
        say(f"hotshoe: error: {reason}")
        code = 1
    return code


def show_device(facts: DeviceFacts) -> str:
    """Describe a device in one phrase."""
    units = "unit" if facts.compute_units == 1 else "units"
    return f"{facts.name}, {facts.arch}, {facts.compute_units} compute {units}"
