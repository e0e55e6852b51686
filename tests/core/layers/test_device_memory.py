"""Memory comes back where it was, with all tensors over it; or elsewhere, and nothing is lost."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from hotshoe.errors import EngineError, RequestError
from hotshoe.layers.device_memory import DeviceMemory, tensors_over
from hotshoe.slots import ReservingTransferOp
from hotshoe.slots.reference.transfer import Transfer

POISON = 0xA5


class Memory:
    """Ordinary memory, of which somebody else has written all while it was given back."""

    def __init__(self, owner: Reserving, sizes: Sequence[int]) -> None:
        self.owner = owner
        self.blocks = [np.zeros(size, np.uint8) for size in sizes]
        self.tensors = [torch.as_tensor(block) for block in self.blocks]
        self.there = False
        self.take()
        owner.every.append(weakref.ref(self))

    def give_back(self) -> None:
        if self.there:
            self.owner.log.append("give back")
        self.there = False
        for block in self.blocks:
            block[:] = POISON

    def take(self) -> None:
        if self.there:
            return
        if self.owner.room is not None and self.owner.taken >= self.owner.room:
            raise torch.OutOfMemoryError("it is full")
        self.owner.log.append("take")
        self.there = True


class Reserving(Transfer):
    """Grants addresses that stay, and memory for `room` reservations at once; None is for all."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.every: list[weakref.ref[Memory]] = []
        self.room: int | None = None

    def reserve(self, sizes: Sequence[int]) -> Memory:
        return Memory(self, sizes)

    def living(self) -> list[Memory]:
        """Return the reservations of which anything is left."""
        return [memory for found in self.every if (memory := found()) is not None]

    @property
    def taken(self) -> int:
        """How many have memory."""
        return sum(memory.there for memory in self.living())


def storages(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tensors]


def addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("inference", [False, True])
def test_it_moves_once_and_stays(inference: bool) -> None:
    with torch.inference_mode(inference):
        _moves_once()


def _moves_once() -> None:
    transfer = Reserving()
    assert isinstance(transfer, ReservingTransferOp)
    held = [torch.randn(4, 6), torch.randn(3).bfloat16()]
    views = [held[0].T[2:], held[0].view(2, 12), held[1][1:]]
    shapes = [(v.shape, v.stride(), v.storage_offset(), v.dtype) for v in views]
    memory = DeviceMemory(transfer)
    assert memory.hold(storages(held)) and not memory.hold(storages(held))
    assert not memory.settled and not memory.keeps(storages(held))
    memory.give_up()
    assert memory.gone and all(storage.nbytes() == 0 for storage in storages(held))
    memory.take_back()
    assert memory.settled and memory.keeps(storages(held)) and not memory.gone
    assert [(v.shape, v.stride(), v.storage_offset(), v.dtype) for v in views] == shapes
    first = addresses([*held, *views])
    for value in range(1, 3):
        held[0].fill_(value)
        held[1].fill_(-value)
        assert (views[0] == value).all() and (views[1] == value).all() and views[2][0] == -value
        memory.give_up()
        assert held[0].view(torch.uint8)[0, 0] == POISON
        memory.take_back()
        assert addresses([*held, *views]) == first
        assert not memory.hold(storages(held))
    assert transfer.log == ["take"] + ["give back", "take"] * 2


def test_what_was_replaced_moves_too() -> None:
    transfer, held = Reserving(), [torch.zeros(4), torch.zeros(5)]
    memory = DeviceMemory(transfer)
    memory.hold(storages(held))
    memory.give_up()
    memory.take_back()
    kept = held[0].data_ptr()
    held[1] = torch.zeros(7)
    assert not memory.keeps(storages(held))
    assert memory.hold(storages(held))
    memory.give_up()
    memory.take_back()
    assert memory.keeps(storages(held)) and held[0].data_ptr() == kept
    held[1].fill_(3)
    assert held[1].tolist() == [3] * 7


def test_a_full_device_leaves_it_given_up() -> None:
    transfer, held = Reserving(), [torch.zeros(4)]
    memory = DeviceMemory(transfer)
    memory.hold(storages(held))
    for settled in (False, True):
        memory.give_up()
        transfer.room = 0
        with pytest.raises(torch.OutOfMemoryError):
            memory.take_back()
        assert memory.gone and memory.settled is settled
        transfer.room = None
        memory.take_back()
        assert not memory.gone
        held[0].fill_(2)
    assert held[0].tolist() == [2] * 4


def test_users_that_are_no_tensors_keep_their_memory() -> None:
    transfer = Reserving()
    held = [torch.zeros(4, 6), torch.zeros(5)]
    user = held[0].untyped_storage()
    memory = DeviceMemory(transfer)
    memory.hold(storages(held))
    for _ in range(2):
        memory.give_up()
        assert [storage.nbytes() for storage in storages(held)] == [0, 0]
        memory.take_back()
        assert not memory.settled and not memory.keeps(storages(held))
        for tensor in held:
            tensor.fill_(7)
        assert user is held[0].untyped_storage() and (held[1] == 7).all()
        assert (torch.empty(0).set_(user) == 7).all()
    assert transfer.log == ["take", "give back"]


def test_the_base_of_a_view_moves_too() -> None:
    held = [torch.zeros(4, 6).view(24)]  # which no variable names
    memory = DeviceMemory(Reserving())
    memory.hold(storages(held))
    memory.give_up()
    memory.take_back()
    held[0].fill_(3)
    assert memory.settled and held[0]._base is not None and (held[0]._base == 3).all()


def test_without_reservations_it_comes_back_anywhere() -> None:
    held = [torch.zeros(4), torch.zeros(5)]
    memory = DeviceMemory(Transfer(None, None))
    memory.hold(storages(held))
    memory.give_up()
    memory.take_back()
    assert not memory.settled and not memory.keeps(storages(held))
    held[1].fill_(3)
    assert held[1].tolist() == [3] * 5


def test_memory_of_others_is_refused() -> None:
    fixed = torch.as_tensor(np.zeros(8, np.uint8))
    memory = DeviceMemory(Reserving())
    with pytest.raises(RequestError, match=r"cannot be given back .* level 2"):
        memory.hold(storages([fixed]))
    assert memory.tensors == []


def test_nothing_at_all() -> None:
    memory = DeviceMemory(Reserving())
    assert not memory.hold([])
    memory.give_up()
    memory.take_back()
    assert not memory.keeps([])


def test_tensors_are_found_by_what_they_look_at() -> None:
    one, other = torch.zeros(6), torch.zeros(6)
    views = [one[2:], one.view(2, 3)]
    found = tensors_over(storages([one, other]))
    assert {id(tensor) for tensor in found[0]} == {id(tensor) for tensor in (one, *views)}
    assert [id(tensor) for tensor in found[1]] == [id(other)]


def test_no_way_back_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [torch.zeros(4)]
    user = held[0].untyped_storage()
    memory = DeviceMemory(Reserving())
    memory.hold(storages(held))
    memory.give_up()

    def full(storage: object, size: int) -> None:
        raise torch.OutOfMemoryError("it is full")

    monkeypatch.setattr(torch.UntypedStorage, "resize_", full)
    with pytest.raises(EngineError, match="none now"):
        memory.take_back()
    assert user.nbytes() == 0
