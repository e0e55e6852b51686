"""Memory of a device that waits on the host: what is copied again, and what is not."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.host_memory import ALIGNMENT, BLOCK_BYTES, HostBlocks, RestingPlace


class Counting:
    """Counts what it is asked for; grants so many bytes."""

    def __init__(self, granted: int = BLOCK_BYTES) -> None:
        self.granted, self.taken, self.uploads = granted, 0, 0

    def host_buffer(self, nbytes: int) -> Tensor:
        self.taken += nbytes
        if self.taken > self.granted:
            raise RuntimeError("no pages")
        return torch.full((nbytes,), 255, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        self.uploads += 1
        target.copy_(source)

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        return lambda: tensors


def test_pieces_of_blocks_do_not_overlap() -> None:
    transfer = Counting()
    blocks = HostBlocks(transfer.host_buffer, 5000)
    pieces = [blocks.take(nbytes) for nbytes in (1, 3000, 0, ALIGNMENT, 6000, 1, 9000)]
    for value, piece in enumerate(pieces):
        piece.fill_(value)
    assert [len(piece) for piece in pieces] == [1, 3000, 0, ALIGNMENT, 6000, 1, 9000]
    assert all((piece == value).all() for value, piece in enumerate(pieces))
    starts = [piece.data_ptr() for piece in pieces[:4] if len(piece)]
    assert all((start - starts[0]) % ALIGNMENT == 0 for start in starts)
    assert transfer.taken < 30_000


def weights() -> list[Tensor]:
    return [torch.randn(n) for n in (3, 1000, 5)]


def memory(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tensors]


def test_memory_comes_back_with_what_it_held() -> None:
    transfer, held = Counting(), weights()
    place = RestingPlace(transfer)
    for change in (None, None, 1.5, None):
        if change is not None:
            held[1].add_(change)
            place.forget()
        wanted, before = [tensor.clone() for tensor in held], transfer.taken
        place.give_up(memory(held))
        assert [storage.nbytes() for storage in memory(held)] == [0, 0, 0]
        place.take_back()
        for ours, theirs in zip(held, wanted, strict=True):
            assert torch.equal(ours, theirs)
        assert before in (0, transfer.taken)  # host memory is taken once


def test_unchanged_memory_is_not_copied_again() -> None:
    held = weights()
    place = RestingPlace(Counting())
    place.give_up(memory(held))
    place.take_back()
    wanted = held[0].clone()
    held[0].zero_()  # behind its back
    place.give_up(memory(held))
    place.take_back()
    assert torch.equal(held[0], wanted)


def test_memory_that_changes_unasked_is_copied_each_time() -> None:
    held = weights()
    place = RestingPlace(Counting(), changing=True)
    for _ in range(2):
        held[0].add_(1)
        wanted = held[0].clone()
        place.give_up(memory(held))
        place.take_back()
        assert torch.equal(held[0], wanted)


def test_memory_that_was_replaced_is_found() -> None:
    transfer, held = Counting(), weights()
    place = RestingPlace(transfer)
    place.give_up(memory(held))
    place.take_back()
    held[2] = torch.randn(7)
    wanted = [tensor.clone() for tensor in held]
    place.give_up(memory(held))
    place.take_back()
    for ours, theirs in zip(held, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_a_host_without_room_leaves_all_where_it_is() -> None:
    held = weights()
    wanted = [tensor.clone() for tensor in held]
    place = RestingPlace(Counting(granted=2000))
    for _ in range(2):
        with pytest.raises(MemoryLimitError, match=r"grants no .* sleep level 2"):
            place.give_up(memory(held))
        for ours, theirs in zip(held, wanted, strict=True):
            assert torch.equal(ours, theirs)


def test_nothing_on_a_device() -> None:
    transfer = Counting(granted=0)
    place = RestingPlace(transfer)
    place.give_up([])
    place.take_back()
    assert transfer.uploads == 0
