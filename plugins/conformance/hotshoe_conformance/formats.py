"""Runs weight formats end to end: from a checkpoint's tensors, through candidates, to products.

A kernel that takes a format may be right while the format gives it wrong scales. So products are
compared with those of the plain numbers that the format stands for: those that a method of
`--quantization` got, or those that an example of a stored format says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotshoe.foreign import ForeignError, foreign
from hotshoe.layers import Share, Storage, WeightFormat, checked_format
from hotshoe.layers.guarded import GuardedFormat
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.slots import REFERENCE, Candidate, LinearSpec
from hotshoe_conformance.cases.base import clean, generator
from hotshoe_conformance.judge import ask, cause
from hotshoe_conformance.measure import Timing, seconds_per_call
from hotshoe_conformance.place import Place
from hotshoe_conformance.report import Defect

METHODS, STORED = "hotshoe_quantizations", "hotshoe_weight_formats"
EXAMPLES = "hotshoe_format_examples"
LAYER = "model.layers.0.mlp.down_proj"
SHAPES = ((96, 256), (256, 512))
TIMED_SHAPE = (2048, 2048)
ROWS, DTYPE = 7, "float32"
#: How far products may be from those of the plain numbers, as a share of these: numbers of two bits
#: are as far off. Their size on the whole, which scales decide, is kept much better.
FAR_OFF, OTHER_SIZE = 0.5, 0.15
#: Of stored numbers nothing is lost but what eight bits of x lose.
STORED_OFF = 0.03


@dataclass(frozen=True, slots=True)
class Example:
    """A matrix as a checkpoint of a format has it, and what it stands for.

    Attributes:
        config: The checkpoint's `quantization_config`.
        tensors: By the last parts of their names.
        weight: [rows, columns] float32, the numbers that they mean.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    weight: Tensor


@dataclass(slots=True)
class FormatReport:
    """What became of formats, by name: who multiplied with them, or why they did not run."""

    outcomes: dict[str, str] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)


def prove_formats(
    plugins: PluginManager,
    candidates: Sequence[Candidate],
    facts: DeviceFacts,
    seed: int,
    late: Callable[[str], bool] = lambda what: False,
) -> FormatReport:
    """Run every format that plugins offer.

    Args:
        plugins: All of this process.
        candidates: Of slot `linear`, the reference among them.
        facts: The device.
        seed: Of all values.
        late: Is told of each format before it begins; true leaves it out.
    """
    report = FormatReport()
    # The reference comes first: where it is wrong, the format is to blame.
    asked = sorted(candidates, key=lambda candidate: candidate.name != REFERENCE)
    for label, runs in _all_runs(plugins, seed):
        if late("weight formats"):
            report.outcomes[label] = "not run: no time was left"
            continue
        try:
            with foreign():
                outcome, defect = _prove(runs(), asked, facts)
        except ForeignError as failed:
            outcome, defect = "wrong", Defect(cause(failed))
        report.outcomes[label] = outcome
        if defect is not None:
            report.defects.append(replace(defect, what=f"{label}: {defect.what}"))
    for name in sorted(plugins.mapping(STORED).keys() - plugins.mapping(EXAMPLES).keys()):
        report.outcomes[f"quant_method {name}"] = "not run: its plugin has no example of it"
    return report


def format_timings(
    plugins: PluginManager, candidate: Candidate, facts: DeviceFacts, seed: int
) -> Iterator[Timing]:
    """Time a candidate on what methods of `--quantization` make of a large matrix."""
    place = Place(facts.device)
    for label, runs in _all_runs(plugins, seed, [TIMED_SHAPE]):
        with suppress(Exception):  # `prove_formats` says what is wrong
            for run in runs():
                if not candidate.ask(run.spec, facts).accepted:
                    continue
                op = resolve_lazy(candidate.build)(run.spec, facts)
                op.load(run.parts)
                x = place(torch.randn(1, run.spec.in_features))
                seconds = seconds_per_call(lambda op=op, x=x: op(x), place)
                products = 2 * run.spec.in_features * run.spec.out_features
                yield Timing(clean(run.spec), label, seconds, op.nbytes(), products)


def _all_runs(
    plugins: PluginManager, seed: int, shapes: Sequence[tuple[int, int]] = SHAPES
) -> Iterator[tuple[str, Callable[[], Iterator[_Run]]]]:
    """Yield each format's name and what makes its matrices."""
    for name, made in sorted(plugins.mapping(METHODS).items()):
        source = generator(seed, name, 0)
        yield f"--quantization {name}", partial(_online, made, shapes, source)
    stored, examples = plugins.mapping(STORED), plugins.mapping(EXAMPLES)
    for name in sorted(stored.keys() & examples.keys()):
        pair = (stored[name], examples[name])
        yield f"quant_method {name}", partial(_stored, *pair, generator(seed, name, 0))


@dataclass(frozen=True, slots=True)
class _Run:
    """One matrix of one format, as kernels get it."""

    spec: LinearSpec
    parts: Mapping[str, Sequence[Tensor]]
    weight: Tensor
    exact: bool


def _online(
    method: Any, shapes: Sequence[tuple[int, int]], source: torch.Generator
) -> Iterator[_Run]:
    made = _guarded(resolve_lazy(method)())
    for shape in shapes:
        weight = torch.randn(shape, generator=source) * shape[1] ** -0.5
        yield from _run(made, {"weight": weight}, weight, exact=False)


def _stored(reader: Any, examples: Any, source: torch.Generator) -> Iterator[_Run]:
    found: Iterable[Example] = resolve_lazy(examples)(source)
    for example in found:
        stored = _guarded(resolve_lazy(reader)(example.config))
        yield from _run(stored, example.tensors, example.weight, exact=True)


def _guarded(made: object) -> WeightFormat:
    """Check what a format answers; whoever calls names it."""
    return GuardedFormat(checked_format(made, "of a plugin"), foreign(lambda error: error))


def _run(
    format: WeightFormat, tensors: Mapping[str, Tensor], weight: Tensor, exact: bool
) -> Iterator[_Run]:
    rows, columns = weight.shape
    stored: Storage | None = format.storage(LAYER, (rows, columns))
    if stored is None:
        return
    share = Share((slice(0, rows),), slice(0, columns))
    kept: dict[str, list[Tensor]] = {}
    for name, spec in format.tensors(LAYER, (rows, columns), share).items():
        tensor = tensors[name]
        if tuple(tensor.shape) != spec.shape or tensor.dtype not in spec.dtypes:
            given = f"{list(tensor.shape)} {tensor.dtype}"
            raise ValueError(f"it wants {name} as {list(spec.shape)} {spec.dtypes}, not {given}")
        kept[name] = spec.keep(tensor)
    spec = LinearSpec(columns, rows, DTYPE, weight=stored.weight, activation=stored.activation)
    yield _Run(spec, format.canonical(LAYER, kept), weight, exact)


def _prove(
    runs: Iterable[_Run], candidates: Sequence[Candidate], facts: DeviceFacts
) -> tuple[str, Defect | None]:
    """Return who multiplied what a format made, and what was wrong, if anything."""
    ran: dict[str, None] = {}
    for run in runs:
        for candidate in candidates:
            verdict, _ = ask(candidate, run.spec, facts)
            if verdict is None or not verdict.accepted:
                continue
            ran[candidate.name] = None
            if what := _wrong(run, candidate, facts):
                where = f"multiplied by candidate {candidate.name} of slot linear"
                return "wrong", Defect(f"{what}, {where}", clean(run.spec))
    if not ran:
        return "not run: no candidate of slot linear takes what it makes", None
    return f"passed: {', '.join(ran)}", None


@torch.inference_mode()
def _wrong(run: _Run, candidate: Candidate, facts: DeviceFacts) -> str:
    """Say what is wrong with a candidate's product; "" for nothing."""
    place = Place(facts.device)
    x = torch.randn(ROWS, run.spec.in_features, generator=torch.Generator().manual_seed(1))
    try:
        with foreign():
            op = resolve_lazy(candidate.build)(run.spec, facts)
            op.load({name: [part.clone() for part in parts] for name, parts in run.parts.items()})
            got = op(place(x)).to("cpu").double()
    except ForeignError as failed:
        return f"it raises {cause(failed)}"
    want = x.double() @ run.weight.double().T
    if got.shape != want.shape:
        return f"it returned {list(got.shape)}, not {list(want.shape)}"
    return difference(got, want, STORED_OFF if run.exact else FAR_OFF)


def difference(got: Tensor, want: Tensor, limit: float) -> str:
    """Say how products differ from those of plain numbers, beyond what is lost by rounding."""
    size = float((got * want).sum() / (want * want).sum())
    off = float((got - want).norm() / want.norm())
    if not abs(size - 1) <= min(OTHER_SIZE, limit):
        return f"products are {size:.3g} times as large as those of the plain numbers"
    if not off <= limit:
        return f"products are off by {off:.2f} of those of the plain numbers (allowed: {limit:g})"
    return ""
