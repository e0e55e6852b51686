"""What one slot's cases are made of. The modules beside this one are data and little else.

A `Suite` lists `Setup`s (a specification and what the inputs look like) and turns one into a
`Problem`: inputs, the call, and what must come out, computed on the host in float32 from the
values that the candidate gets.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, KVLayout
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Expected

DTYPES = ("float32", "bfloat16", "float16")
HOST = DeviceFacts("host", "cpu", "the reference's host", "any", 1 << 30, 1)
#: More elements than a 32-bit index reaches.
FAR = (1 << 31) + 64


@dataclass(frozen=True, slots=True)
class Setup:
    """One case: a specification and the inputs' shape, both printable.

    Attributes:
        quick: Part of a quick run.
        bytes: Device memory that inputs and results take, where that is remarkable. Operations
            take no more, as their contract says; references do.
    """

    spec: Any
    shape: Any
    quick: bool = False
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call moves and computes at least, for comparison with the device's limits."""

    bytes: int
    operations: int


class Problem(Protocol):
    """A case with its inputs."""

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        """Run the operation on fresh copies of the inputs; return named outputs on the device."""
        ...

    def expected(self) -> Mapping[str, Expected]:
        """Return what each output has to be."""
        ...


class Divisible(Problem, Protocol):
    """A problem whose parts can be computed alone, for the claim of batch invariance."""

    def alone(self) -> tuple[Problem, slice]:
        """Return one row or request as a problem, and where its rows are in the outputs."""
        ...


class Measurable(Problem, Protocol):
    """A problem that is worth timing."""

    def cost(self) -> Cost:
        """Return the least work that the operation can be done with."""
        ...

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        """Return a call without arguments that does the operation's work and nothing else."""
        ...


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of one slot.

    Attributes:
        slot: The slot's name.
        grid: Fixed cases, given the cache layouts that attention candidates declare.
        random: Draws another case.
        problem: Makes the inputs.
        bench: Cases to time, given the layouts too; their problems are `Measurable`.
        among_ranks: Its operation is that of several processes; see `ranks`.
    """

    slot: str
    grid: Callable[[Sequence[KVLayout]], Sequence[Setup]]
    random: Callable[[random.Random, Sequence[KVLayout]], Setup]
    problem: Callable[[Setup, torch.Generator], Problem]
    bench: Callable[[Sequence[KVLayout]], Sequence[Setup]] = lambda layouts: ()
    among_ranks: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A setup with its place in a run; slot, index and seed repeat it exactly."""

    slot: str
    index: int
    seed: int
    setup: Setup

    def problem(self, suite: Suite) -> Problem:
        """Make the inputs, the same ones every time."""
        return suite.problem(self.setup, generator(self.seed, self.slot, self.index))


def cases(
    suite: Suite, layouts: Sequence[KVLayout], seed: int, wanted: Iterable[int]
) -> Iterator[Case]:
    """Yield the cases of some indices, in order: those of the grid come first, then random ones.
    An index means the same case whichever others are run."""
    fixed = suite.grid(layouts)
    for index in sorted(wanted):
        if index < len(fixed):
            setup = fixed[index]
        else:
            setup = suite.random(random.Random(f"{seed}/{suite.slot}/{index}"), layouts)
        yield Case(suite.slot, index, seed, setup)


def quick_indices(setups: Sequence[Setup], seed: int) -> set[int]:
    """Choose the cases of a quick run: small ones, each in one of the element types that it is in.

    Which one differs from case to case and changes with the seed. A kernel that is compiled for
    every specification takes a third of the time so.
    """
    alike: dict[tuple[Any, Any], list[int]] = {}
    for index, setup in enumerate(setups):
        if setup.quick:
            plain = in_dtype(setup.spec, DTYPES[0]) if hasattr(setup.spec, "dtype") else setup.spec
            alike.setdefault((plain, setup.shape), []).append(index)
    return {found[(turn + seed) % len(found)] for turn, found in enumerate(alike.values())}


def generator(seed: int, slot: str, index: int) -> torch.Generator:
    """Return the source of one case's numbers."""
    digest = hashlib.sha256(f"{seed}/{slot}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def vary(base: Any, variations: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the base and its variations, each in every element type."""
    specs = [base, *(replace(base, **changes) for changes in variations)]
    return [in_dtype(spec, dtype) for dtype in DTYPES for spec in specs]


def in_dtype(spec: Any, dtype: str) -> Any:
    """Return a specification in another element type, its cache's and its parts' too, but for a
    cache that is quantized."""
    changes: dict[str, Any] = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name == "dtype" or (field.name == "kv_dtype" and value in DTYPES):
            changes[field.name] = dtype
        elif is_dataclass(value) and hasattr(value, "dtype"):
            changes[field.name] = in_dtype(value, dtype)
    return replace(spec, **changes)


def reference(slot: str, spec: Any) -> Any:
    """Build core's reference on the host."""
    return resolve_lazy(SLOTS[slot].reference)(spec, HOST)


def normal(shape: Sequence[int], dtype: str, source: torch.Generator, scale: float = 1) -> Tensor:
    """Draw normal values and round them to an element type."""
    values = torch.randn(tuple(shape), generator=source) * scale
    return values.to(getattr(torch, dtype))


def compared(before: int, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the outputs' rows behind the first ones, which are not compared, and let go of these.

    They would take as much memory again in the next call.
    """
    if not before:
        return outputs
    return {name: tensor[before:].clone() for name, tensor in outputs.items()}


def clean(value: Any) -> str:
    """Print a specification or shape without the fields that have their default."""
    from hotshoe.slots.show import show_spec

    return show_spec(value)
