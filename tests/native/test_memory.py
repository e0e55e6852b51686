"""Memory functions: every word of a range is read once, and advice is safe on any range."""

import os
import platform
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

LOADED = Path("/proc/self/maps")
needs_heap_of_libc = pytest.mark.skipif(
    LOADED.exists() and any(name in LOADED.read_text() for name in ("libasan", "libtsan")),
    reason="a sanitizer brings an allocator of its own",
)


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


@needs_heap_of_libc
def test_freed_memory_is_kept(native: ModuleType) -> None:
    assert native.keep_freed_memory(64 << 20) is (platform.libc_ver()[0] == "glibc")


@needs_heap_of_libc
def test_freed_memory_is_returned_when_asked(native: ModuleType) -> None:
    """What lies between two living allocations is no end of the heap that is cut off by itself."""
    if not native.keep_freed_memory(1 << 30):
        pytest.skip("the C library is not glibc")
    blocks = [bytearray(b"x") * (16 << 20) for _ in range(16)]
    before = resident_bytes()
    del blocks[::2]
    assert before - resident_bytes() < 32 << 20, "it is kept"
    assert native.release_freed_memory()
    assert before - resident_bytes() > 96 << 20
    native.keep_freed_memory(256 << 20)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
