"""The check that holds kernels to their arguments catches those that leave them."""

import pytest
import torch
import triton
import triton.language as tl
from tests.platforms.triton.conftest import ON_DEVICE
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(ON_DEVICE, reason="interprets kernels, and there is a GPU")


@triton.jit
def shift(out_ptr, x_ptr, by, SIZE: tl.constexpr, MASKED: tl.constexpr):
    at = tl.arange(0, SIZE)
    if MASKED:
        tl.store(out_ptr + at, tl.load(x_ptr + at + by, mask=at + by < SIZE, other=0.0))
    else:
        tl.store(out_ptr + at, tl.load(x_ptr + at + by))


@triton.jit
def count(counter_ptr, by):
    tl.atomic_add(counter_ptr + by, 1)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(16.0)


def test_accesses_within_pass(x: torch.Tensor) -> None:
    out = torch.full_like(x, torch.nan)
    shift[(1,)](out, x, 3, SIZE=16, MASKED=True)
    assert out.tolist() == [*range(3, 16), 0, 0, 0]


@pytest.mark.parametrize("by", [-1, 1, 1 << 20])
def test_reading_beside_is_refused(x: torch.Tensor, by: int) -> None:
    with pytest.raises(InterpreterError, match="outside the kernel's arguments"):
        shift[(1,)](torch.empty_like(x), x, by, SIZE=16, MASKED=False)


def test_writing_beside_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(InterpreterError, match="4 of 16 accesses of 4 bytes"):
        shift[(1,)](torch.empty(12), x, 0, SIZE=16, MASKED=False)


@pytest.mark.parametrize("by", [-1, 4])
def test_counting_beside_is_refused(by: int) -> None:
    with pytest.raises(InterpreterError, match="outside the kernel's arguments"):
        count[(1,)](torch.zeros(4, dtype=torch.int32), by)
