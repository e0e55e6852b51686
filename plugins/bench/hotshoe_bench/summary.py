"""From records to numbers: latencies, throughput, goodput, failures by cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotshoe.errors import ConfigError
from hotshoe.suggest import did_you_mean
from hotshoe_bench.record import Record

#: Latencies of a request that an objective may bound.
LATENCIES = ("ttft", "tpot", "e2e")
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Failure:
    """How many requests failed of one cause, and what the first of them said."""

    count: int
    example: str


def parse_objectives(words: Sequence[str]) -> dict[str, float]:
    """Read `ttft:500 tpot:50` as milliseconds by latency.

    Raises:
        ConfigError: A word is of another form, or names no latency.
    """
    objectives = {}
    for word in words:
        name, colon, value = word.partition(":")
        if name not in LATENCIES:
            hint = did_you_mean(name, LATENCIES)
            raise ConfigError(f"--goodput knows {', '.join(LATENCIES)}, not {name!r}{hint}")
        try:
            objectives[name] = float(value) if colon else math.nan
        except ValueError:
            objectives[name] = math.nan
        if not 0 < objectives[name] < math.inf:
            raise ConfigError(f"--goodput {word}: give milliseconds above 0, as {name}:500")
    return objectives


def summarize(records: Sequence[Record], objectives: Mapping[str, float]) -> dict[str, float]:
    """Return every number by name; names without a value, such as TPOT of one token, are left out.

    Throughput counts complete answers only, over the time from the first request sent to the last
    one ended.
    """
    good = [record for record in records if record.failure is None]
    begin = min(record.sent_s for record in records)
    duration = max(record.ended_s for record in records) - begin
    generated = sum(record.output_len for record in good)
    read = sum(record.input_len for record in good)
    numbers: dict[str, float] = {
        "duration_s": duration,
        "num_completed": len(good),
        "num_failed": len(records) - len(good),
        "input_tokens": read,
        "output_tokens": generated,
        "requests_per_s": len(good) / duration,
        "output_tokens_per_s": generated / duration,
        "tokens_per_s": (read + generated) / duration,
    }
    if objectives:
        met = sum(meets(record, objectives) for record in good)
        numbers["goodput_requests_per_s"] = met / duration
        numbers["goodput_share"] = met / len(records)
    for name in LATENCIES:
        values = [getattr(record, f"{name}_ms") for record in good]
        numbers |= spread(f"{name}_ms", [value for value in values if value is not None])
    numbers |= spread(
        "e2e_per_token_ms", [r.e2e_ms / r.output_len for r in good if r.e2e_ms is not None]
    )
    numbers |= spread("itl_ms", [gap for record in good for gap in record.itl_ms])
    numbers["send_lag_ms_p99"] = percentile(sorted(record.lag_ms for record in records), 99)
    return numbers


def meets(record: Record, objectives: Mapping[str, float]) -> bool:
    """Tell whether a complete answer keeps to every objective; a lone token has no TPOT to miss."""
    return all((getattr(record, f"{name}_ms") or 0) <= limit for name, limit in objectives.items())


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles, nothing for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    numbers = {f"{name}_mean": math.fsum(ordered) / len(ordered)}
    return numbers | {f"{name}_p{p}": percentile(ordered, p) for p in PERCENTILES}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Interpolate linearly between the two nearest of sorted values."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def failures(records: Sequence[Record]) -> dict[str, Failure]:
    """Count the causes of failure, the most frequent first."""
    causes = Counter(record.failure for record in records if record.failure is not None)
    examples = {record.failure: record.detail for record in reversed(records)}
    return {cause: Failure(count, examples[cause]) for cause, count in causes.most_common()}
