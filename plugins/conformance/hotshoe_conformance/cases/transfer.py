"""Cases of slot `transfer`: steps in flight, with host memory that is rewritten at once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, ReservingTransferOp, TransferSpec
from hotshoe_conformance.cases.base import Setup, Suite
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Exact, Expected


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` steps of `numbers` int32 each."""

    count: int
    numbers: int


SLOT = "transfer"


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [
        Setup(TransferSpec(depth, fetches), Steps(count, numbers), True)
        for depth, fetches in ((1, False), (2, False), (2, True))
        for count, numbers in ((1, 1), (5, 1), (6, 1000), (4, 100_000))
    ]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    return Setup(
        TransferSpec(rng.randrange(1, 4), rng.random() < 0.5),
        Steps(rng.randrange(1, 8), rng.randrange(1, 5000)),
    )


@dataclass(slots=True)
class TransferProblem:
    """Each step uploads its numbers, the device adds one, and the result comes back later; once
    more over memory whose addresses stay, where there is such, once it was given back and taken.

    Where weights are fetched, those of the next step are on their way while one computes.
    """

    spec: TransferSpec
    numbers: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        depth, width = self.spec.max_steps_in_flight, self.numbers.shape[1]
        fresh = [place.empty(width, dtype=torch.int32) for _ in range(depth)]
        found = {"arrived": self._steps(op, fresh)}
        found["again"] = self._steps(op, self._reserved(op, fresh))
        return found | ({"fetched": self._fetched(op, place)} if self.spec.fetches else {})

    def _reserved(self, op: Any, like: Sequence[Tensor]) -> Sequence[Tensor]:
        if not isinstance(op, ReservingTransferOp):
            return like
        memory = op.reserve([tensor.nbytes for tensor in like])
        tensors = [tensor.view(torch.int32) for tensor in memory.tensors]
        before = [tensor.data_ptr() for tensor in tensors]
        for _ in range(2):  # nothing happens the second time
            memory.give_back()
        for _ in range(2):
            memory.take()
        assert [tensor.data_ptr() for tensor in tensors] == before, "addresses have not stayed"
        for number, tensor in enumerate(tensors):
            tensor.fill_(number)
        held = all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))
        assert held, "tensors share memory"
        return tensors

    def _fetched(self, op: Any, place: Place) -> Tensor:
        """Add each step's numbers to three times the sum, from two places by turns."""
        count, width = self.numbers.shape
        held = op.host_buffer(4 * self.numbers.numel()).view(torch.int32).view(count, width)
        held.copy_(self.numbers)
        targets = [place.empty(width, dtype=torch.int32) for _ in range(2)]
        total = place(torch.zeros(width, dtype=torch.int32))
        waits = [op.fetch([(held[0], targets[0])])]
        for step in range(count):
            if step + 1 < count:
                waits.append(op.fetch([(held[step + 1], targets[(step + 1) % 2])]))
            waits.pop(0)()
            total = total * 3 + targets[step % 2]
        return self._arrive(op.download([total]))

    def _steps(self, op: Any, device: Sequence[Tensor]) -> Tensor:
        depth, (count, width) = self.spec.max_steps_in_flight, self.numbers.shape
        buffers = [op.host_buffer(4 * width).view(torch.int32) for _ in range(depth)]
        waiting: list[Any] = []
        arrived: list[Tensor] = []
        for step in range(count):
            if len(waiting) == depth:
                arrived.append(self._arrive(waiting.pop(0)))
            # Its last use was `depth` steps ago, whose download has arrived.
            at = step % depth
            buffers[at].copy_(self.numbers[step])
            op.upload(buffers[at], device[at])
            waiting.append(op.download([device[at] + 1]))
        arrived += [self._arrive(wait) for wait in waiting]
        return torch.stack(arrived)

    @staticmethod
    def _arrive(wait: Any) -> Tensor:
        [copy] = wait()
        assert copy.device.type == "cpu", f"a download gave a tensor on {copy.device}"
        return torch.as_tensor(copy).clone()

    def expected(self) -> Mapping[str, Expected]:
        total = torch.zeros_like(self.numbers[0])
        for numbers in self.numbers:
            total = total * 3 + numbers
        fetched = {"fetched": Exact(total)} if self.spec.fetches else {}
        arrived = Exact(self.numbers + 1)
        return {"arrived": arrived, "again": arrived, **fetched}


def _problem(setup: Setup, source: torch.Generator) -> TransferProblem:
    shape = (setup.shape.count, setup.shape.numbers)
    numbers = torch.randint(-(2**30), 2**30, shape, generator=source)
    return TransferProblem(setup.spec, numbers.int())


SUITE = Suite(SLOT, _grid, _draw, _problem)
