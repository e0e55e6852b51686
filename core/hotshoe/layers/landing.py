"""Brings adapters onto the device: one copy for each, however many matrices it changes.

The factors of an adapter are one row of numbers in host memory. They go to a landing place on the
device at once, by way of memory that the device can read by itself, so that the host goes on while
they travel. From there one operation spreads them over the layers. What a later step needs travels
beside a step, and lies in its place before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from hotshoe.layers.weights import HOST
from hotshoe.slots import TransferOp

#: Buffers that the device reads, of which one may be on its way beside a step. Where all are under
#: way, the host waits for the first of them.
BUFFERS = 3
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
        #: The numbers in the landing place of the device, once they were there.
        self.landed: tuple[Tensor, ...] = ()

    def at(self, place: int) -> list[Tensor]:
        """Return the numbers of one place, which is asked for again and again."""
        if place not in self._at:
            self._at[place] = [target[place] for target in self._targets]
        return self._at[place]


class Packed(NamedTuple):
    """Factors in host memory, in the order of a layout: [sum of its sizes]."""

    numbers: Tensor
    layout: Layout


class Landing:
    """Adapters in host memory by name, and what brings them to places on the device."""

    def __init__(self) -> None:
        self._most, self._dtype = 0, torch.float32  # of the largest adapter that there may be
        self._packed: dict[str, Packed] = {}
        self._layouts = WeakValueDictionary[Hashable, Layout]()  # of adapters that are kept or held
        self._held: dict[int, Layout] = {}  # by the place
        self._transfer: TransferOp | None = None
        self._there = torch.empty(0)
        self._num_buffers = 0
        self._ring: list[tuple[Tensor, Callable[[], object]]] = []
        self._coming: tuple[Layout, Tensor, Callable[[], None]] | None = None

    def grow(self, numbers: int, dtype: torch.dtype, device: str) -> int:
        """Make room for one more layer's part of an adapter; return the bytes that it takes."""
        self._most, self._dtype = self._most + numbers, dtype
        return 0 if torch.device(device) == HOST else numbers * dtype.itemsize

    def open(self, device: str, transfer: TransferOp) -> None:
        """Take the room on a device, to which an operation copies; on the host there is none."""
        if self._transfer is None and torch.device(device) != HOST:
            self._transfer = transfer
            self._there = torch.empty(self._most, dtype=self._dtype, device=device)

    def keep(self, name: str, kind: Hashable, pieces: Sequence[Piece]) -> None:
        """Copy an adapter's numbers into host memory.

        Args:
            name: Of the adapter, of which nothing is kept.
            kind: Equal for adapters of the same layout.
            pieces: All that it changes.
        """
        if pieces:
            layout = self._layouts.get(kind) or Layout([target for target, _ in pieces])
            self._layouts[kind] = layout
            self._packed[name] = Packed(torch.cat([numbers for _, numbers in pieces]), layout)

    def drop(self, name: str) -> None:
        """Forget an adapter, if it is kept."""
        self._packed.pop(name, None)

    def fill(self, place: int, name: str) -> None:
        """Write an adapter over the one before, which may have changed other matrices."""
        packed = self._packed.get(name)
        if packed is None:
            self._clear(place, None)
            return
        if self._transfer is None:
            rows = tuple(packed.numbers.split_with_sizes(packed.layout.sizes))
        else:
            self._send(packed.numbers)
            rows = self._landed(packed.layout)
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

    def _landed(self, layout: Layout) -> tuple[Tensor, ...]:
        """Return the parts of the landing place, which adapters of a layout share."""
        if not layout.landed:
            layout.landed = tuple(self._there[: sum(layout.sizes)].split_with_sizes(layout.sizes))
        return layout.landed

    def can_fetch(self, name: str) -> bool:
        """Tell whether an adapter has numbers that may come to the device beside a step."""
        return self._transfer is not None and name in self._packed

    def fetch(self, name: str) -> None:
        """Start to copy an adapter to the device beside the next step; `arrive` comes before any
        other copy."""
        assert self._transfer is not None
        packed = self._packed[name]
        staged, buffer = self._staged(packed.numbers)
        arrived = self._transfer.fetch([(staged, self._there[: len(staged)])])
        self._coming = packed.layout, buffer, arrived

    def arrive(self, place: int | None) -> None:
        """Write what was fetched into a place; None leaves it."""
        assert self._transfer is not None and self._coming is not None
        (layout, buffer, arrived), self._coming = self._coming, None
        arrived()
        if place is not None:
            self._spread(place, layout, self._landed(layout))
        self._ring.append((buffer, self._transfer.download([])))

    def _send(self, numbers: Tensor) -> None:
        """Copy numbers to the landing place, behind what was launched before."""
        assert self._transfer is not None
        staged, buffer = self._staged(numbers)
        self._transfer.upload(staged, self._there[: len(numbers)])
        self._ring.append((buffer, self._transfer.download([])))

    def _staged(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers where the device can read them by itself, and the whole buffer."""
        assert self._transfer is not None
        if self._num_buffers < BUFFERS:
            self._num_buffers += 1
            buffer = self._transfer.host_buffer(self._most * numbers.element_size())
        else:
            buffer, arrived = self._ring.pop(0)
            arrived()
        staged = buffer[: numbers.nbytes].view(numbers.dtype)
        staged.copy_(numbers)
        return staged, buffer
