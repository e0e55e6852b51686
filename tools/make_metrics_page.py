"""Write docs/reference/metrics.md from the table of metrics.

`make reference` runs it; a test fails when the page is not what it would write.
"""

from collections.abc import Iterable
from pathlib import Path

from hotshoe_observability import bounds, table
from hotshoe_observability.table import Metric

PATH = Path(__file__).resolve().parent.parent / "docs/reference/metrics.md"
NOTE = "<!-- Written by tools/make_metrics_page.py; `make reference` writes it anew. -->"
INTRODUCTION = """\
`hotshoe serve` answers `GET /metrics` in the text format of Prometheus, or in that of OpenMetrics
where the `Accept` header asks for it. `--no-metrics` leaves it out. Every series has label `model`;
further labels take the listed values only, so no request can make a new series.

With `--metrics-names vllm` the same numbers are given under vLLM's names too, with its labels
`model_name` and `engine` and its buckets, for those that have a counterpart there,
and beside them `vllm:cache_config_info`, `vllm:lora_requests_info`
where `--enable-lora` is given, and the `process_*` of the process that answers.

A counter's name in queries ends in `_total`; a histogram has `_bucket`, `_sum` and `_count`."""
SECTIONS = (
    ("Engine", "Counted by the engine, over all processes that answer HTTP.", table.ENGINE),
    ("Requests", "Counted where HTTP is answered, summed over processes.", table.FRONT_END),
    ("The server itself", "Known without counting.", table.OWN),
)


def page() -> str:
    """Return the whole page."""
    lines = ["# Metrics", NOTE, "", INTRODUCTION]
    for title, text, metrics in SECTIONS:
        lines += ["", f"## {title}", "", text, "", *rows(metrics)]
    lines += ["", "## Buckets", ""]
    seconds = ", ".join(f"{bound:g}" for bound in bounds.SECONDS)
    tokens = f"the powers of two from {bounds.TOKENS[0]:g} to {bounds.TOKENS[-1]:,.0f}"
    counts = ", ".join(f"{bound:g}" for bound in bounds.COUNTS)
    lines += [f"Seconds: {seconds}.", "", f"Tokens: {tokens}.", "", f"Sequences: {counts}.", ""]
    for title, found in (
        ("Tokens of a step", bounds.STEP_TOKENS),
        ("HTTP by route", bounds.HTTP_FEW),
        ("HTTP over all routes", bounds.HTTP_MANY),
    ):
        lines += [f"{title}: {', '.join(f'{bound:,g}' for bound in found)}.", ""]
    lines.pop()
    lines += ["", "## Values of labels", ""]
    labeled = [metric for metric in table.METRICS if metric.label]
    for metric in labeled:
        lines += [f"{code(metric.label.split())} of `{metric.sample}`: {code(metric.values)}.", ""]
    return "\n".join(lines)


def rows(metrics: Iterable[Metric]) -> list[str]:
    """Return a table of metrics."""
    found = ["| metric | kind | label | meaning | vLLM's name |", "|---|---|---|---|---|"]
    for metric in metrics:
        label = code(metric.label.split())
        vllm = f"`{metric.vllm}{'_total' * (metric.kind == 'counter')}`" if metric.vllm else ""
        cells = (f"`{metric.sample}`", metric.kind, label, metric.help, vllm)
        found.append(f"| {' | '.join(cells)} |")
    return found


def code(values: Iterable[str]) -> str:
    """Join values, each in code letters."""
    return ", ".join(f"`{value}`" for value in values)


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
