"""Adapters on their way to places: what was there before goes, and copies do not overtake."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hotshoe.layers.landing import BUFFERS, Landing, Piece

PLACES = 2


class Late:
    """Copies when it is waited for, as a device may."""

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.buffers = 0

    def host_buffer(self, nbytes: int) -> Tensor:
        self.buffers += 1
        return torch.full((nbytes,), 255, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)
        self.pending.append((source, source.clone()))

    def fetch(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        for source, target in copies:
            target.fill_(float("nan"))
            self.pending.append((source, source.clone()))

        def arrive() -> None:
            for source, target in copies:
                target.copy_(source)

        return arrive

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        number = len(self.pending)

        def wait() -> Sequence[Tensor]:
            for source, then in self.pending[:number]:
                assert torch.equal(source, then), "written while it was read"
            del self.pending[:number]
            return ()

        return wait


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])  # the second is no host to it
def test_a_place_holds_its_last_adapter_alone(device: str) -> None:
    first, second = torch.full((PLACES, 4), 7.0), torch.full((PLACES, 3, 5), 7.0)
    matrices = (first, second[:, 1:].view(PLACES, -1), second[:, :1].view(PLACES, -1))
    landing, transfer = Landing(), Late()
    for matrix in matrices:
        landing.grow(matrix.shape[1], torch.float32, device)
        matrix.zero_()
    landing.open(device, transfer)
    wanted: dict[str, dict[int, Tensor]] = {}
    for name, changed in (("a", (0, 1)), ("b", (0, 1)), ("c", (2,)), ("none", ())):
        pieces: list[Piece] = [(matrices[i], torch.randn(matrices[i].shape[1])) for i in changed]
        wanted[name] = {i: numbers for i, (_, numbers) in zip(changed, pieces, strict=True)}
        landing.keep(name, changed, pieces)
    held = dict.fromkeys(range(PLACES), "none")
    for step, name in enumerate(("a", "b", "c", "a", "c", "none", "b", "a", "none")):
        held[step % PLACES] = name
        landing.fill(step % PLACES, name)
        for place, there in held.items():
            for i, matrix in enumerate(matrices):
                numbers = wanted[there].get(i, torch.zeros(matrix.shape[1]))
                assert torch.equal(matrix[place], numbers)
    assert transfer.buffers == (0 if device == "cpu" else BUFFERS)


def test_what_is_fetched_arrives_in_its_place() -> None:
    matrix, landing, transfer = torch.zeros(PLACES, 4), Landing(), Late()
    landing.grow(4, torch.float32, "cpu:0")
    landing.open("cpu:0", transfer)
    numbers = {name: torch.randn(4) for name in "abc"}
    for name, own in numbers.items():
        landing.keep(name, 0, [(matrix, own)])
    landing.fill(0, "a")
    for name in "bcbacbca":
        assert landing.can_fetch(name)
        landing.fetch(name)
        before = matrix.clone()
        landing.arrive(None)
        assert torch.equal(matrix, before)
        landing.fetch(name)
        landing.arrive(1)
        assert torch.equal(matrix, torch.stack([numbers["a"], numbers[name]]))
        landing.fill(0, "a")
    assert transfer.buffers == BUFFERS
    assert not landing.can_fetch("d")
    assert not Landing().can_fetch("a")


def test_a_dropped_adapter_leaves_zeros() -> None:
    matrix, landing = torch.zeros(PLACES, 4), Landing()
    landing.keep("a", 0, [(matrix, torch.ones(4))])
    landing.fill(1, "a")
    landing.drop("a")
    landing.drop("a")
    landing.fill(1, "a")
    assert not matrix.any()
