"""The cases of transfer find copies that come too late, too early or not at all."""

from types import SimpleNamespace

import torch

from hotshoe.slots.reference.transfer import Transfer


def test_the_reference_passes(defects) -> None:
    assert defects("transfer", Transfer) == []


class Late(Transfer):
    """Copies to the device only when a result is wanted."""

    pending = None

    def upload(self, source, target):
        self.pending = (source, target)

    def download(self, tensors):
        later = super().download(tensors)
        if self.pending:
            self.pending[1].copy_(self.pending[0])
        return later


class Views(Transfer):
    """Hands out the device's memory itself, which later steps overwrite."""

    def download(self, tensors):
        shared = self.__dict__.setdefault("shared", {})
        for at, tensor in enumerate(tensors):
            shared.setdefault(at, tensor.clone()).copy_(tensor)
        return lambda: list(shared.values())


class Hasty(Transfer):
    """Fetches only when somebody waits for the next."""

    pending = ()

    def fetch(self, copies):
        for source, target in self.pending:
            target.copy_(source)
        self.pending = copies
        return lambda: None


def test_copies_that_are_not_in_order(finds) -> None:
    assert finds("transfer", Late)
    assert finds("transfer", Views)
    assert finds("transfer", Hasty)


class Reserving(Transfer):
    """Has memory at addresses that stay: tensors, of which each has `step` bytes to itself."""

    step = 1 << 20

    def reserve(self, sizes):
        memory = torch.zeros(len(sizes) * (1 << 20), dtype=torch.uint8)
        starts = range(0, len(memory), 1 << 20) if self.step else [0] * len(sizes)
        parts = [memory[i : i + size] for i, size in zip(starts, sizes, strict=True)]

        def nothing():
            pass

        return SimpleNamespace(tensors=parts, give_back=nothing, take=nothing)


class Overlapping(Reserving):
    """Gives all the same memory."""

    step = 0


def test_memory_at_addresses_that_stay(defects, finds) -> None:
    assert defects("transfer", Reserving) == []
    assert finds("transfer", Overlapping)
