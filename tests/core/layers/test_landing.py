"""Adapters on their way to places: what was there before goes, and copies do not overtake."""

import os
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.landing import Landing, Piece

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
    assert transfer.buffers == (0 if device == "cpu" else 3)  # one for each that has numbers


def test_what_is_fetched_arrives_in_its_place() -> None:
    matrix, landing, transfer = torch.zeros(3, 4), Landing(), Late()
    landing.grow(4, torch.float32, "cpu:0")
    landing.open("cpu:0", transfer)
    numbers = {name: torch.randn(4) for name in "abc"}
    for name, own in numbers.items():
        landing.keep(name, 0, [(matrix, own)])
    landing.fill(0, "a")
    for first, second in ("bc", "cb", "ba", "ac", "ca", "ab"):
        assert landing.can_fetch(first)
        before = matrix.clone()
        landing.fetch([(first, 1), (second, 2)])
        assert landing.arrive({first: 2}) == []
        assert torch.equal(matrix, before)
        landing.fetch([(first, 1), (second, 2)])
        assert torch.equal(matrix, before)
        assert landing.arrive({first: 1, "z": 0, second: 2}) == [(first, 1), (second, 2)]
        assert torch.equal(matrix, torch.stack([numbers["a"], numbers[first], numbers[second]]))
        landing.fetch([(second, 1), (first, 2)])
        assert landing.arrive({first: 2}) == [(first, 2)]
        assert torch.equal(matrix, torch.stack([numbers[n] for n in ("a", first, first)]))
        landing.fill(0, "a")
    assert transfer.buffers == 3
    assert landing.arrive({}) == ()
    assert not landing.can_fetch("d")
    assert not Landing().can_fetch("a")


def test_memory_that_a_device_reads_is_not_given_up() -> None:
    matrix, landing, transfer = torch.zeros(PLACES, 4), Landing(), Late()
    landing.grow(4, torch.float32, "cpu:0")
    landing.open("cpu:0", transfer)
    for name in "ab":
        landing.keep(name, 0, [(matrix, torch.randn(4))])
    landing.fill(0, "a")
    landing.fetch([("b", 1)])
    landing.drop("b")
    assert not transfer.pending
    landing.fill(0, "a")
    landing.drop("c")  # there is none, so nobody waits
    assert transfer.pending


def test_a_dropped_adapter_leaves_zeros() -> None:
    matrix, landing = torch.zeros(PLACES, 4), Landing()
    landing.keep("a", 0, [(matrix, torch.ones(4))])
    landing.fill(1, "a")
    landing.drop("a")
    landing.drop("a")
    landing.fill(1, "a")
    assert not matrix.any()


def test_an_adapter_stays_where_a_new_one_finds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, landing, transfer = torch.zeros(PLACES, 4), Landing(), Late()
    landing.grow(4, torch.float32, "cpu:0")
    landing.open("cpu:0", transfer)
    landing.keep("a", 0, [(matrix, torch.ones(4))])

    def fail(error: Exception) -> None:
        def full(nbytes: int) -> Tensor:
            raise error

        monkeypatch.setattr(transfer, "host_buffer", full)
        landing.keep("a", 0, [(matrix, torch.zeros(4))])

    for error in (RuntimeError("CUDA error: out of memory\nmore"), OSError(12, os.strerror(12))):
        words = r"the host has no .* page-locked .*memory\); .* lower --lora-host-memory-gib"
        with pytest.raises(MemoryLimitError, match=words):
            fail(error)
    with pytest.raises(RuntimeError, match="another fault"):
        fail(RuntimeError("another fault"))
    landing.fill(0, "a")
    assert matrix[0].all()
    landing.keep("a", 1, [])
    assert not landing.can_fetch("a")
