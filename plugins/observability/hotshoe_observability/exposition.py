"""Writes the metrics in the formats of Prometheus and OpenMetrics, also under vLLM's names.

The library writes the formats; the numbers come from the engine's statistics and from `Counts`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
ADAPTERS = "vllm:lora_requests_info"
ADAPTER_LABELS = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
VLLM = Names(model_label="model_name", fixed={"engine": "0"}, vllm=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a model at one moment; `stats` is None while its engine does not answer."""

    model: str
    info: EngineInfo
    stats: EngineStats | None
    num_restarts: int
    counts: Counts


def expose(
    snapshots: Sequence[Snapshot],
    names: Iterable[Names] = (HOTSHOE,),
    accept: str = "",
    whole: Counts | None = None,
) -> tuple[bytes, str]:
    """Write everything.

    Args:
        snapshots: The numbers, of one or several models.
        names: The sets of names to write it under, one after the other.
        accept: The Accept header of who asks.
        whole: What was counted for no model in particular; default: in the counts of the first.

    Returns:
        The text and its content type.
    """
    whole = whole or snapshots[0].counts
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([f for n in names for f in families(snapshots, n, whole)]))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class _Collector:
    """What the library's registry takes."""

    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> list[Family]:
        return self._found


def families(snapshots: Sequence[Snapshot], names: Names, whole: Counts) -> Iterator[Family]:
    """Make the families under one set of names."""
    for metric in table.METRICS:
        if not names.metric(metric):
            continue
        if metric is table.INFO:
            yield _info(metric, snapshots)
        elif metric.kind == "histogram":
            yield _histograms(metric, snapshots, names, whole)
        elif metric in table.WHOLE:
            yield _whole(metric, snapshots, names, whole)
        else:
            values = {s.model: _values(metric, s) for s in snapshots}
            found = {model: known for model, known in values.items() if known is not None}
            if found:
                yield _plain(metric, found, names)
    if names.vllm:
        yield _cache_info(snapshots, names)
        yield from _adapters(snapshots)
        yield from PROCESS_COLLECTOR.collect()


def _values(metric: Metric, snapshot: Snapshot) -> Mapping[str, float] | None:
    """Return a model's numbers by label value; None while its engine does not answer."""
    if metric in table.FRONT_END:
        return {value: snapshot.counts.total(metric, value) for value in metric.values}
    if metric is table.UP:
        return {"": float(snapshot.stats is not None)}
    if metric is table.RESTARTS:
        return {"": snapshot.num_restarts}
    if snapshot.stats is None:
        return None
    assert metric.read is not None
    found = metric.read(snapshot.stats)
    assert not isinstance(found, Sequence), "a histogram"
    by_value = found if isinstance(found, Mapping) else {"": found}
    shown = by_value if metric.sparse else metric.values
    return {value: float(by_value.get(value, 0)) for value in shown}


def _labels(metric: Metric, names: Names) -> list[str]:
    return [names.model_label, *(names.fixed or {}), *names.label(metric).split()]


def _label_values(metric: Metric, model: str, value: str, names: Names) -> list[str]:
    return [model, *(names.fixed or {}).values(), *(value.split() if metric.label else [])]


def _plain(metric: Metric, found: Mapping[str, Mapping[str, float]], names: Names) -> Family:
    """Make a family of counters or gauges, from numbers by model and label value."""
    family = _FAMILIES[metric.kind](
        names.metric(metric), metric.help, labels=_labels(metric, names)
    )
    for model, values in found.items():
        for value, number in values.items():
            family.add_metric(_label_values(metric, model, value, names), number)
    made: Family = family
    return made


def _whole(metric: Metric, snapshots: Sequence[Snapshot], names: Names, whole: Counts) -> Family:
    """Make a family of what no model in particular is counted for."""
    if metric is table.PROCESSES:
        return _plain(metric, {_lone(snapshots): {"": whole.num_processes}}, names)
    values = {value: whole.total(metric, value) for value in metric.values}
    return _plain(metric, {_lone(snapshots): values}, names)


def _lone(snapshots: Sequence[Snapshot]) -> str:
    """Return the model that is named beside what is counted for none: a lone one."""
    return snapshots[0].model if len(snapshots) == 1 else ""


def _histograms(
    metric: Metric, snapshots: Sequence[Snapshot], names: Names, whole: Counts
) -> Family:
    """Make a family of histograms."""
    family = HistogramMetricFamily(names.metric(metric), metric.help, labels=_labels(metric, names))
    shown = (*(metric.vllm_buckets if names.vllm else metric.buckets), float("inf"))
    for model, value, (*numbers, total) in _numbers(metric, snapshots, whole):
        buckets, sofar = [], 0.0
        for bound, number in zip((*metric.bounds, float("inf")), numbers, strict=True):
            sofar += number
            if bound in shown:
                buckets.append(("+Inf" if bound == float("inf") else str(bound), sofar))
        family.add_metric(_label_values(metric, model, value, names), buckets, total)
    return family


def _numbers(
    metric: Metric, snapshots: Sequence[Snapshot], whole: Counts
) -> Iterator[tuple[str, str, Sequence[float]]]:
    """Find the numbers of histograms, by model and label value."""
    if metric in table.WHOLE:
        for value in metric.values:
            yield _lone(snapshots), value, whole.histogram(metric, value)
        return
    for snapshot in snapshots:
        if metric.read is None:
            yield snapshot.model, "", snapshot.counts.histogram(metric)
        elif snapshot.stats is not None:
            found = metric.read(snapshot.stats)
            assert isinstance(found, Sequence)
            yield snapshot.model, "", found


def _described(name: str, help: str, labels: Sequence[Mapping[str, str]]) -> Family:
    """Make a family whose numbers are 1, as the labels tell all."""
    family = GaugeMetricFamily(name, help, labels=list(labels[0]))
    for values in labels:
        family.add_metric(list(values.values()), 1)
    return family


def _cache_info(snapshots: Sequence[Snapshot], names: Names) -> Family:
    """Make the family in which vLLM describes its cache, of the fields that mean something here."""
    labels = [
        {
            names.model_label: snapshot.model,
            **(names.fixed or {}),
            "block_size": str(snapshot.info.block_size),
            "cache_dtype": snapshot.info.config.kv_cache_dtype,
            "enable_prefix_caching": str(snapshot.info.config.enable_prefix_caching),
            "num_gpu_blocks": str(snapshot.info.num_blocks),
        }
        for snapshot in snapshots
    ]
    return _described(CACHE_INFO, "Always 1; labels describe the cache.", labels)


def _adapters(snapshots: Sequence[Snapshot]) -> Iterator[Family]:
    """Make the family in which vLLM names adapters that requests wait for or run with.

    Its number is the time of day. The names are of adapters that the operator has loaded.
    """
    family = GaugeMetricFamily(
        ADAPTERS, "When these adapters were in use; labels name them.", labels=ADAPTER_LABELS
    )
    for snapshot in snapshots:
        if snapshot.stats is None or not snapshot.info.config.enable_lora:
            continue
        used = sorted(snapshot.stats.adapters.items())
        waiting = ",".join(name for name, (num_waiting, _) in used if num_waiting)
        running = ",".join(name for name, (_, num_running) in used if num_running)
        labels = [str(snapshot.info.config.max_loras), waiting, running]
        family.add_metric(labels, time.time())
    if family.samples:
        yield family


def _info(metric: Metric, snapshots: Sequence[Snapshot]) -> Family:
    """Make the family that describes engines."""
    labels = [
        {
            "model": snapshot.model,
            "version": __version__,
            "platform": snapshot.info.config.platform,
            "dtype": snapshot.info.config.dtype,
            "quantization": snapshot.info.config.quantization or "none",
            "num_blocks": str(snapshot.info.num_blocks),
            "block_size": str(snapshot.info.block_size),
        }
        for snapshot in snapshots
    ]
    return _described(metric.name, metric.help, labels)
