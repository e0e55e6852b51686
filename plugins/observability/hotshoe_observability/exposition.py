"""Writes the metrics in the formats of Prometheus and OpenMetrics, also under vLLM's names.

The library writes the formats; the numbers come from the engine's statistics and from `Counts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from hotshoe import __version__
from hotshoe.engine.client import EngineInfo, EngineStats
from hotshoe_observability import table
from hotshoe_observability.counts import Counts
from hotshoe_observability.table import Metric

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Names:
    """How metrics and labels are called.

    Attributes:
        model_label: Label of the model's name.
        fixed: Further labels that all series have.
        vllm: Whether these are vLLM's names.
    """

    model_label: str = "model"
    fixed: Mapping[str, str] | None = None
    vllm: bool = False

    def metric(self, metric: Metric) -> str:
        """Return a metric's name, "" if it has none here."""
        return metric.vllm if self.vllm else metric.name

    def label(self, metric: Metric) -> str:
        """Return the name of a metric's own label."""
        return metric.vllm_label if self.vllm else metric.label


HOTSHOE = Names()
#: Under vLLM's names alone.
CACHE_INFO = "vllm:cache_config_info"
VLLM = Names(model_label="model_name", fixed={"engine": "0"}, vllm=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at one moment; `stats` is None while the engine does not answer."""

    model: str
    info: EngineInfo
    stats: EngineStats | None
    num_restarts: int
    counts: Counts


def expose(
    snapshot: Snapshot, names: Iterable[Names] = (HOTSHOE,), accept: str = ""
) -> tuple[bytes, str]:
    """Write everything.

    Args:
        snapshot: The numbers.
        names: The sets of names to write it under, one after the other.
        accept: The Accept header of who asks.

    Returns:
        The text and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([f for n in names for f in families(snapshot, n)]))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class _Collector:
    """What the library's registry takes."""

    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> list[Family]:
        return self._found


def families(snapshot: Snapshot, names: Names) -> Iterator[Family]:
    """Make the families under one set of names."""
    for metric in table.METRICS:
        if not names.metric(metric):
            continue
        if metric in table.FRONT_END:
            yield _counted(metric, snapshot, names)
        elif metric.read is None:
            yield _own(metric, snapshot)
        elif snapshot.stats is not None:
            found = metric.read(snapshot.stats)
            by_value = found if isinstance(found, Mapping) else {"": found}
            shown = by_value if metric.sparse else metric.values
            values = {value: float(by_value.get(value, 0)) for value in shown}
            yield _plain(metric, snapshot.model, values, names)
    if names.vllm:
        yield _cache_info(snapshot, names)
        yield from PROCESS_COLLECTOR.collect()


def _labels(metric: Metric, names: Names) -> list[str]:
    return [names.model_label, *(names.fixed or {}), *names.label(metric).split()]


def _label_values(metric: Metric, model: str, value: str, names: Names) -> list[str]:
    return [model, *(names.fixed or {}).values(), *(value.split() if metric.label else [])]


def _plain(metric: Metric, model: str, values: Mapping[str, float], names: Names) -> Family:
    """Make a family of counters or gauges."""
    family = _FAMILIES[metric.kind](
        names.metric(metric), metric.help, labels=_labels(metric, names)
    )
    for value, number in values.items():
        family.add_metric(_label_values(metric, model, value, names), number)
    made: Family = family
    return made


def _counted(metric: Metric, snapshot: Snapshot, names: Names) -> Family:
    """Make a family of what the front end counts."""
    counts = snapshot.counts
    if metric.kind != "histogram":
        values = {value: counts.total(metric, value) for value in metric.values}
        return _plain(metric, snapshot.model, values, names)
    family = HistogramMetricFamily(names.metric(metric), metric.help, labels=_labels(metric, names))
    numbers, total = counts.histogram(metric)
    buckets, sofar = [], 0.0
    shown = metric.vllm_buckets if names.vllm else metric.buckets
    for bound, number in zip((*metric.bounds, float("inf")), numbers, strict=True):
        sofar += number
        if bound in shown or bound == float("inf"):
            buckets.append(("+Inf" if bound == float("inf") else str(bound), sofar))
    family.add_metric(_label_values(metric, snapshot.model, "", names), buckets, total)
    return family


def _cache_info(snapshot: Snapshot, names: Names) -> Family:
    """Make the family in which vLLM describes its cache, of the fields that mean something here."""
    config, info = snapshot.info.config, snapshot.info
    labels = {
        names.model_label: snapshot.model,
        **(names.fixed or {}),
        "block_size": str(info.block_size),
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "num_gpu_blocks": str(info.num_blocks),
    }
    family = GaugeMetricFamily(CACHE_INFO, "Always 1; labels describe the cache.", labels=labels)
    family.add_metric(list(labels.values()), 1)
    return family


def _own(metric: Metric, snapshot: Snapshot) -> Family:
    """Make a family of what is known without counting."""
    if metric is table.INFO:
        config, info = snapshot.info.config, snapshot.info
        labels = {
            "model": snapshot.model,
            "version": __version__,
            "platform": config.platform,
            "dtype": config.dtype,
            "quantization": config.quantization or "none",
            "num_blocks": str(info.num_blocks),
            "block_size": str(info.block_size),
        }
        family = GaugeMetricFamily(metric.name, metric.help, labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family
    values = {
        table.UP.name: float(snapshot.stats is not None),
        table.RESTARTS.name: snapshot.num_restarts,
        table.PROCESSES.name: snapshot.counts.num_processes,
    }
    return _plain(metric, snapshot.model, {"": values[metric.name]}, HOTSHOE)
