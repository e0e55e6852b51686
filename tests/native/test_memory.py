"""Memory functions: every word of a range is read once, and advice is safe on any range."""

import platform
from types import ModuleType

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("nbytes", [0, 8, 40, 4096 * 8, 1_000_008])
def test_read_memory_sees_every_word(native: ModuleType, rng: torch.Generator, nbytes: int) -> None:
    data = torch.randint(0, 256, (nbytes + 8,), dtype=torch.uint8, generator=rng)
    words = data[:nbytes].numpy().view(np.uint64)
    assert native.read_memory(data.data_ptr(), nbytes) == int(np.bitwise_xor.reduce(words))


def test_huge_pages_keep_contents(native: ModuleType, rng: torch.Generator) -> None:
    data = torch.randint(0, 256, (5_000_001,), dtype=torch.uint8, generator=rng)
    copy = data.clone()
    assert isinstance(native.advise_huge_pages(data.data_ptr() + 1, 5_000_000), bool)
    assert native.advise_huge_pages(data.data_ptr(), 1) is False
    assert torch.equal(data, copy)


def test_freed_memory_is_kept(native: ModuleType) -> None:
    assert native.keep_freed_memory(64 << 20) is (platform.libc_ver()[0] == "glibc")
