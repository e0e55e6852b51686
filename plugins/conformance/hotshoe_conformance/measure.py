"""How near candidates come to what the device can do, measured in the same run.

The limits are what a plain copy and plain matrix products reach through PyTorch, raised by
whatever candidate does better; a share says how much of the nearer limit a call reaches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate, KVLayout
from hotshoe_conformance.cases.base import Case, Setup, Suite, clean
from hotshoe_conformance.place import Place
from hotshoe_conformance.report import Share

COPY_BYTES = 256 << 20
MATRIX_SIZES = (1024, 4096)
MIN_SECONDS, MIN_CALLS = 0.03, 3
#: A matrix product that takes longer says enough about slow devices.
PATIENCE_S = 0.5
BANDWIDTH, ARITHMETIC = "B/s", "operations/s"


@dataclass(frozen=True, slots=True)
class Timing:
    """A timed call and the least work that it stands for."""

    spec: str
    shape: str
    seconds: float
    bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and operations per second."""

    bandwidth: float
    arithmetic: float

    @classmethod
    def of(cls, device: str, host_threads: int) -> Limits:
        """Measure a device.

        Args:
            device: As in `DeviceFacts.device`.
            host_threads: PyTorch's threads before the platform took what it wants.
        """
        place = Place(device)
        before = torch.get_num_threads()
        torch.set_num_threads(host_threads)
        try:
            a, b = (place.empty(COPY_BYTES, dtype=torch.uint8) for _ in range(2))
            bandwidth = 2 * COPY_BYTES / seconds_per_call(lambda: a.copy_(b), place)
            return cls(bandwidth, max(_matrix_rates(place)))
        finally:
            torch.set_num_threads(before)

    def raised_by(self, timings: Iterable[Timing]) -> Limits:
        """Return limits that no timing exceeds where it is bound by arithmetic or memory."""
        found = self
        for timing in timings:
            if self._bound(timing) == ARITHMETIC:
                rate = timing.operations / timing.seconds
                found = replace(found, arithmetic=max(found.arithmetic, rate))
        return found

    def _bound(self, timing: Timing) -> str:
        move, compute = timing.bytes / self.bandwidth, timing.operations / self.arithmetic
        return BANDWIDTH if move >= compute else ARITHMETIC

    def share(self, timing: Timing) -> Share:
        """Compare a timing with the limit that binds it."""
        bound = self._bound(timing)
        least = max(timing.bytes / self.bandwidth, timing.operations / self.arithmetic)
        name = "bandwidth" if bound == BANDWIDTH else "arithmetic"
        share = least / timing.seconds
        return Share(timing.spec, timing.shape, timing.seconds * 1e6, name, share)

    def as_mapping(self) -> dict[str, float]:
        """Return the limits by unit."""
        return {BANDWIDTH: self.bandwidth, ARITHMETIC: self.arithmetic}


def timed_setups(
    suite: Suite, layouts: Sequence[KVLayout], candidate: Candidate, facts: DeviceFacts
) -> Sequence[Setup]:
    """Return what to time a candidate on: the usual, or the largest case that it accepts at all.

    One that was written for a single head size, say, accepts none of the usual ones.
    """
    usual = suite.bench(layouts)
    if not usual or any(candidate.ask(setup.spec, facts).accepted for setup in usual):
        return usual
    own: list[tuple[int, Setup]] = []
    for setup in suite.grid(layouts):
        if setup.bytes or not candidate.ask(setup.spec, facts).accepted:
            continue
        problem: Any = Case(suite.slot, 0, 0, setup).problem(suite)
        own.append((problem.cost().bytes, setup))
    return [max(own, key=lambda pair: pair[0])[1]] if own else ()


def timings(
    suite: Suite, setups: Sequence[Setup], candidate: Candidate, facts: DeviceFacts, seed: int
) -> Iterator[Timing]:
    """Time a candidate on its suite's setups for that, where it accepts them."""
    place = Place(facts.device)
    for index, setup in enumerate(setups):
        if not candidate.ask(setup.spec, facts).accepted:
            continue
        problem: Any = Case(suite.slot, index, seed, setup).problem(suite)
        op = resolve_lazy(candidate.build)(setup.spec, facts)
        call = problem.prepare(op, place)
        cost = problem.cost()
        seconds = seconds_per_call(call, place)
        yield Timing(clean(setup.spec), clean(setup.shape), seconds, cost.bytes, cost.operations)


def seconds_per_call(call: Callable[[], object], place: Place) -> float:
    """Return the median time of a call, the device's work included."""
    call()
    place.synchronize()
    spent: list[float] = []
    while len(spent) < MIN_CALLS or sum(spent) < MIN_SECONDS:
        begin = time.perf_counter()
        call()
        place.synchronize()
        spent.append(time.perf_counter() - begin)
        if sum(spent) > PATIENCE_S:
            break
    return statistics.median(spent)


def _matrix_rates(place: Place) -> Iterator[float]:
    for dtype in (torch.float32, torch.bfloat16):
        for size in MATRIX_SIZES:
            a, b = (torch.ones(size, size, dtype=dtype, device=place.device) for _ in range(2))
            begin = time.perf_counter()
            seconds = seconds_per_call(lambda a=a, b=b: a @ b, place)
            yield 2 * size**3 / seconds
            if time.perf_counter() - begin > PATIENCE_S:
                break
