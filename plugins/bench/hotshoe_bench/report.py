"""Results for people, as two tables, and for programs, as JSON."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotshoe import __version__
from hotshoe.cli.table import table
from hotshoe_bench.record import Record
from hotshoe_bench.summary import PERCENTILES, Failure

_LATENCY_ROWS = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "itl_ms": "inter-token latency",
    "e2e_ms": "end to end",
    "e2e_per_token_ms": "end to end by output token",
}
_COUNT_ROWS = {
    "duration_s": "duration (s)",
    "num_completed": "requests completed",
    "num_failed": "requests failed",
    "input_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "requests_per_s": "requests per second",
    "output_tokens_per_s": "output tokens per second",
    "tokens_per_s": "all tokens per second",
    "goodput_requests_per_s": "goodput: requests per second within the objectives",
    "goodput_share": "goodput: share of all requests",
    "send_lag_ms_p99": "lateness of this client, p99 (ms)",
}


def render(numbers: Mapping[str, float], failed: Mapping[str, Failure]) -> str:
    """Return what `bench serve` prints."""
    columns = ("mean", *(f"p{p}" for p in PERCENTILES))
    latencies = [
        (title, *(float(numbers[f"{name}_{column}"]) for column in columns))
        for name, title in _LATENCY_ROWS.items()
        if f"{name}_mean" in numbers
    ]
    counts = [(title, numbers[name]) for name, title in _COUNT_ROWS.items() if name in numbers]
    causes = [(f.count, cause, f.example) for cause, f in failed.items()]
    parts = (
        table(("", "value"), counts),
        table(("latency (ms)", *columns), latencies),
        table(("failed", "cause", "first of them"), causes),
    )
    return "\n\n".join(part for part in parts if part)


def document(
    args: Namespace,
    server: Mapping[str, Any],
    numbers: Mapping[str, float],
    failed: Mapping[str, Failure],
    records: Sequence[Record],
) -> dict[str, Any]:
    """Return what `--output-json` holds; pooled gaps are in the summary alone."""
    return {
        "benchmark": "serve",
        "hotshoe": __version__,
        "server": dict(server),
        "workload": workload(args),
        "summary": dict(numbers),
        **details(failed, records),
    }


def workload(args: Namespace) -> dict[str, Any]:
    """Return the flags that shape the load, by name."""
    left_out = ("api_key_file", "output_json", "output_svg", "base_url", "model", "endpoint")
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if name not in left_out
    }


def details(failed: Mapping[str, Failure], records: Sequence[Record]) -> dict[str, Any]:
    """Return failures by cause, and each request without its gaps."""
    requests = [asdict(record) for record in records]
    for request in requests:
        del request["itl_ms"]
    return {
        "failures": {cause: asdict(failure) for cause, failure in failed.items()},
        "requests": requests,
    }
