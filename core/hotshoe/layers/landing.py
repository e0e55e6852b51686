"""Brings adapters onto the device: one copy for each, however many matrices it changes.

The factors of an adapter are one row of numbers in host memory that the device can read by itself.
They go to a landing place on the device at once, while the host goes on. From there one operation
spreads them over the layers. What later steps need travels beside a step, and lies in its place
before the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.adapter_room import GIB
from hotshoe.layers.weights import HOST
from hotshoe.slots import TransferOp

#: Landing places: as many adapters may come beside a step.
LANDINGS = 2
#: Words of runtimes and of systems whose memory has run out.
_NO_MEMORY = re.compile("out of memory|can(no|')t allocate memory", re.IGNORECASE)
#: Numbers of all places [places, n], contiguous in each, and those of one adapter [n] on the host.
Piece: TypeAlias = tuple[Tensor, Tensor]


class Layout:
    """Where the numbers of adapters go that change the same matrices with the same ranks.

    Args:
        targets: [places, n] each: the n numbers of every place, side by side.
    """

    def __init__(self, targets: Sequence[Tensor]) -> None:
        self._targets = targets
        self.sizes = [target.shape[1] for target in targets]
        self._at: dict[int, list[Tensor]] = {}
        #: The numbers in the landing places of the device, once they were there.
        self.landed: dict[int, tuple[Tensor, ...]] = {}

    def at(self, place: int) -> list[Tensor]:
        """Return the numbers of one place, which is asked for again and again."""
        if place not in self._at:
            self._at[place] = [target[place] for target in self._targets]
        return self._at[place]


class Packed(NamedTuple):
    """Factors in host memory, in the order of a layout: [sum of its sizes]."""

    numbers: Tensor
    layout: Layout


class Coming(NamedTuple):
    """Adapters that travel beside a step, their names and places, and what ends the travel."""

    adapters: Sequence[Packed]
    to: Sequence[tuple[str, int]]
    arrived: Callable[[], None]


@contextmanager
def _locked_memory(nbytes: int) -> Iterator[None]:
    """Say of host memory that is not granted which memory it is.

    Raises:
        MemoryLimitError: The host locks no more pages; the system's own words are in it.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not _NO_MEMORY.search(str(error)):
            raise
        raise MemoryLimitError(
            f"the host has no {nbytes / GIB:.3f} GiB of page-locked memory for the adapter "
            f"({str(error).partition(chr(10))[0]}); unload another adapter, lower "
            "--lora-host-memory-gib, or let the process lock more (ulimit -l, a container's limit)"
        ) from error


class Landing:
    """Adapters in host memory by name, and what brings them to places on the device."""

    def __init__(self) -> None:
        self._most, self._dtype = 0, torch.float32  # of the largest adapter that there may be
        self._packed: dict[str, Packed] = {}
        self._layouts = WeakValueDictionary[Hashable, Layout]()  # of adapters that are kept or held
        self._held: dict[int, Layout] = {}  # by the place
        self._transfer: TransferOp | None = None
        self._there = torch.empty(LANDINGS, 0)
        self._coming: Coming | None = None

    def grow(self, numbers: int, dtype: torch.dtype, device: str) -> int:
        """Make room for one more layer's part of an adapter; return the bytes that it takes."""
        self._most, self._dtype = self._most + numbers, dtype
        return 0 if torch.device(device) == HOST else LANDINGS * numbers * dtype.itemsize

    def open(self, device: str, transfer: TransferOp) -> None:
        """Take the room on a device, to which an operation copies; on the host there is none."""
        if self._transfer is None and torch.device(device) != HOST:
            self._transfer = transfer
            self._there = torch.empty(LANDINGS, self._most, dtype=self._dtype, device=device)

    def keep(self, name: str, kind: Hashable, pieces: Sequence[Piece]) -> None:
        """Copy an adapter's numbers into host memory, from which the device reads them.

        Args:
            name: Of the adapter; one of this name goes when there is room for the new one.
            kind: Equal for adapters of the same layout.
            pieces: All that it changes.
        """
        if not pieces:
            self.drop(name)
            return
        layout = self._layouts.get(kind) or Layout([target for target, _ in pieces])
        self._layouts[kind] = layout
        packed = Packed(self._joined([numbers for _, numbers in pieces]), layout)
        self.drop(name)
        self._packed[name] = packed

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if self._transfer is None:
            return torch.cat(parts)
        nbytes = sum(part.nbytes for part in parts)
        with _locked_memory(nbytes):
            numbers = self._transfer.host_buffer(nbytes).view(parts[0].dtype)
        return torch.cat(parts, out=numbers)

    def drop(self, name: str) -> None:
        """Forget an adapter, if it is kept; the device has read what it was told to."""
        if self._packed.pop(name, None) is None or self._transfer is None:
            return
        if self._coming is not None:
            self._coming.arrived()
        self._transfer.download([])()

    def fill(self, place: int, name: str) -> None:
        """Write an adapter over the one before, which may have changed other matrices."""
        packed = self._packed.get(name)
        if packed is None:
            self._clear(place, None)
            return
        if self._transfer is None:
            rows = tuple(packed.numbers.split_with_sizes(packed.layout.sizes))
        else:
            self._transfer.upload(packed.numbers, self._there[0, : len(packed.numbers)])
            rows = self._landed(0, packed.layout)
        self._spread(place, packed.layout, rows)

    def _clear(self, place: int, layout: Layout | None) -> None:
        """Forget what is in a place, and write zeros where another layout writes nothing."""
        before = self._held.pop(place, None)
        if before is not None and before is not layout:
            torch._foreach_zero_(before.at(place))

    def _spread(self, place: int, layout: Layout, rows: tuple[Tensor, ...]) -> None:
        self._clear(place, layout)
        self._held[place] = layout
        torch._foreach_copy_(layout.at(place), rows)

    def _landed(self, landing: int, layout: Layout) -> tuple[Tensor, ...]:
        """Return the parts of a landing place, which adapters of a layout share."""
        if landing not in layout.landed:
            whole = self._there[landing, : sum(layout.sizes)]
            layout.landed[landing] = whole.split_with_sizes(layout.sizes)
        return layout.landed[landing]

    def can_fetch(self, name: str) -> bool:
        """Tell whether an adapter has numbers that may come to the device beside a step."""
        return self._transfer is not None and name in self._packed

    def fetch(self, to: Sequence[tuple[str, int]]) -> None:
        """Start to copy adapters to the device beside the next step.

        Args:
            to: Up to `LANDINGS` names, and the place of each. `arrive` comes before any other copy.
        """
        assert self._transfer is not None
        adapters = [self._packed[name] for name, _ in to]
        copies = [(p.numbers, self._there[i, : len(p.numbers)]) for i, p in enumerate(adapters)]
        self._coming = Coming(adapters, to, self._transfer.fetch(copies))

    def arrive(self, places: Mapping[str, int]) -> Sequence[tuple[str, int]]:
        """Write what was fetched into its places; return these, with names.

        Args:
            places: By name; an adapter that has another one since, or none, is left.
        """
        if self._coming is None:
            return ()
        coming, self._coming = self._coming, None
        coming.arrived()
        stay = [places.get(name) == place for name, place in coming.to]
        for landing, (_, place) in compress(enumerate(coming.to), stay):
            layout = coming.adapters[landing].layout
            self._spread(place, layout, self._landed(landing, layout))
        return list(compress(coming.to, stay))
