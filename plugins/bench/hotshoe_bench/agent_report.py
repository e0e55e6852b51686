"""Results of `hotshoe bench agent`: tables, a JSON document, and an image."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe import __version__
from hotshoe.cli.table import table
from hotshoe.errors import ConfigError
from hotshoe_bench.agent_options import DRAWN
from hotshoe_bench.pareto import Point, draw, front
from hotshoe_bench.report import details, workload
from hotshoe_bench.sessions import Plan, prefix_share
from hotshoe_bench.summary import PERCENTILES, failures, summarize

if TYPE_CHECKING:
    from hotshoe_bench.agent import Level

LATENCIES = {
    "ttft_ms": "time to first token",
    "itl_ms": "inter-token latency",
    "e2e_per_token_ms": "end to end by output token",
}
COLUMNS = {
    "user_tokens_per_s": "tokens/s of a user",
    "output_tokens_per_s": "output tokens/s",
    "tokens_per_s": "all tokens/s",
    "prefix_share": "known prefix",
    "cached_share": "found in cache",
    "num_failed": "failed",
    "num_not_sent": "not sent",
}


def summarize_level(level: Level, plans: Sequence[Plan]) -> dict[str, float]:
    """Return the numbers of one load, by name.

    A user's speed is that of the median request between its first and its last token.
    """
    numbers: dict[str, float] = {"sessions": level.concurrency, **summarize(level.records, {})}
    if numbers.get("tpot_ms_p50", 0.0) > 0:
        numbers["user_tokens_per_s"] = 1e3 / numbers["tpot_ms_p50"]
    numbers["prefix_share"] = prefix_share(plans)
    counted = [r for r in level.records if r.failure is None and r.cached_len is not None]
    if counted:
        cached = sum(record.cached_len or 0 for record in counted)
        numbers["cached_share"] = cached / sum(record.input_len for record in counted)
    numbers["num_not_sent"] = sum(len(plan.turns) for plan in plans) - len(level.records)
    return numbers


def render(levels: Sequence[Level], results: Sequence[Mapping[str, float]]) -> str:
    """Return what `bench agent` prints: the Pareto table, latencies, and failures."""
    best = {point.sessions for point in front(points(results))}
    names = [name for name in COLUMNS if all(name in numbers for numbers in results)]
    speeds = [
        (
            numbers["sessions"],
            *(numbers[name] for name in names),
            "yes" if numbers["sessions"] in best else "no",
        )
        for numbers in results
    ]
    latencies = [
        (title, numbers["sessions"], *(numbers[f"{name}_p{p}"] for p in PERCENTILES))
        for name, title in LATENCIES.items()
        for numbers in results
        if f"{name}_p50" in numbers
    ]
    causes = [
        (level.concurrency, failure.count, cause, failure.example)
        for level in levels
        for cause, failure in failures(level.records).items()
    ]
    header = ("sessions", *(COLUMNS[name] for name in names), "on the Pareto front")
    percentiles = tuple(f"p{p}" for p in PERCENTILES)
    parts = (
        table(header, speeds),
        table(("latency (ms)", "sessions", *percentiles), latencies),
        table(("sessions", "failed", "cause", "first of them"), causes),
    )
    return "\n\n".join(part for part in parts if part)


def points(results: Sequence[Mapping[str, float]]) -> list[Point]:
    """Return the loads that have both speeds."""
    return [
        Point(
            int(numbers["sessions"]), numbers["user_tokens_per_s"], numbers["output_tokens_per_s"]
        )
        for numbers in results
        if "user_tokens_per_s" in numbers
    ]


def document(
    args: Namespace, levels: Sequence[Level], results: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return what `--output-json` holds; its summary names numbers as `ttft_ms_p50@4`."""
    summary = {
        f"{name}@{level.concurrency}": value
        for level, numbers in zip(levels, results, strict=True)
        for name, value in numbers.items()
        if name != "sessions"
    }
    return {
        "benchmark": "agent",
        "hotshoe": __version__,
        "server": {"base_url": args.base_url, "model": args.model, "endpoint": args.endpoint},
        "workload": _workload(args),
        "summary": summary,
        "levels": [
            {"sessions": level.concurrency, **details(failures(level.records), level.records)}
            for level in levels
        ],
    }


def _workload(args: Namespace) -> dict[str, Any]:
    """Return the flags that shape the load: those of drawn sessions shape no trace."""
    unused = {flag[2:].replace("-", "_") for flag in DRAWN} if args.trace is not None else set()
    return {name: value for name, value in workload(args).items() if name not in unused}


def write_svg(path: Path, results: Sequence[Mapping[str, float]], model: str) -> None:
    """Draw the loads.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.write_text(draw(points(results), model), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
