"""Inputs keep their strides on the way, and unwritten memory shows."""

import pytest
import torch

from hotshoe_conformance.place import Place, padded, poisoned


@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 5), (1, 1)])
def test_padded_rows_are_equal_and_further_apart(shape: tuple[int, ...], extra: int) -> None:
    x = torch.randn(shape)
    wide = padded(x, extra)
    assert torch.equal(wide, x)
    if x.numel() and extra:
        assert wide.stride(0) == x.stride(0) + extra
        assert wide.stride()[1:] == x.stride()[1:]


def test_a_copy_has_the_same_layout_and_its_own_memory() -> None:
    place = Place("cpu")
    for x in (torch.randn(4, 6), padded(torch.randn(4, 6), 5), torch.randn(6, 4).T):
        copy = place(x)
        assert torch.equal(copy, x)
        assert copy.stride() == x.stride()
        copy.zero_()
        assert x.abs().sum() > 0


def test_rows_behind_others() -> None:
    place, x = Place("cpu"), torch.randn(2, 3)
    far = place.behind(x, 5)
    assert far.shape == (7, 3)
    assert torch.equal(far[5:], x)
    assert torch.equal(place.behind(x, 0), x)
    place.behind(x, 0, written=True).zero_()
    assert place.overrun() == ""


def test_gaps_are_poisoned() -> None:
    wide = padded(torch.ones(2, 3), 2)
    assert wide.as_strided((2, 5), (5, 1))[:, 3:].isnan().all()
    ints = padded(torch.ones(2, 3, dtype=torch.int32), 2, poison=-1)
    assert (ints.as_strided((2, 5), (5, 1))[:, 3:] == -1).all()


def test_memory_that_is_taken_is_poisoned_for_a_while() -> None:
    with poisoned():
        assert torch.empty(100).isnan().all()
        assert torch.empty_like(torch.ones(3, dtype=torch.bfloat16)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_devices_that_pytorch_has_not_heard_of_are_not_initialized() -> None:
    assert Place("nowhere").initialized() is False
    Place("cpu").synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_writes_beside_a_tensor_and_between_its_rows_are_seen(dtype) -> None:
    rows = padded(torch.ones(3, 5), 4).to(torch.float32) if dtype == torch.float32 else None
    tensor = rows if rows is not None else torch.zeros(3, 5, dtype=dtype)
    ends = (-1, tensor.stride(0) * 2 + 5)
    for at in (*ends, *([6] if rows is not None else [])):
        place = Place("cpu")
        x = place(tensor, written=True)
        x.zero_()
        assert place.overrun() == ""
        x.as_strided((1,), (1,), x.storage_offset() + at).zero_()
        assert place.overrun() == f"element {at} of the memory of a [3, 5] tensor was written"


def test_writes_into_what_is_only_read_are_seen() -> None:
    place = Place("cpu")
    x = place(torch.ones(3, 5))
    assert place.overrun() == ""
    x[1, 2] = 7
    assert place.overrun() == "element 7 of the memory of a [3, 5] tensor was written"


def test_what_was_placed_is_overwritten_afterwards() -> None:
    place = Place("cpu")
    x, ids = place(torch.zeros(4)), place(torch.zeros(2, dtype=torch.int32))
    place.spoil()
    assert x.isnan().all() and ids.tolist() == [1, 1]
    assert place.overrun() == ""
