"""Lists of kernel calls: they repeat what was called, over what memory holds then."""

import threading
from types import ModuleType

import pytest
import torch


def normalize(native: ModuleType, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    rows, size = x.shape
    addresses = (out.data_ptr(), x.data_ptr(), weight.data_ptr())
    native.rms_norm(*addresses, rows, size, size, size, 1e-6, 0.0, 0)


def test_a_list_repeats_calls_in_order_over_what_memory_holds_then(native: ModuleType) -> None:
    x, between, out = torch.rand(3, 16), torch.zeros(3, 16), torch.zeros(3, 16)
    weights = torch.rand(2, 16)
    native.record_begin()
    normalize(native, between, x, weights[0])
    normalize(native, out, between, weights[1])
    calls = native.record_end()
    assert native.record_size(calls) == 2
    assert between.any() and out.any(), "calls run while they are kept"
    for _ in range(3):
        x.copy_(torch.rand(3, 16))
        wanted = [torch.zeros(3, 16), torch.zeros(3, 16)]
        normalize(native, wanted[0], x, weights[0])
        normalize(native, wanted[1], wanted[0], weights[1])
        between.fill_(torch.nan)
        out.fill_(torch.nan)
        native.record_replay(calls)
        assert torch.equal(out, wanted[1])


def test_nothing_is_kept_before_and_after(native: ModuleType) -> None:
    x, weight = torch.rand(1, 8), torch.rand(8)
    normalize(native, x, x, weight)
    native.record_begin()
    calls = native.record_end()
    normalize(native, x, x, weight)
    assert native.record_size(calls) == 0
    before = x.clone()
    native.record_replay(calls)
    assert torch.equal(x, before)


def test_a_call_that_fails_is_not_kept_and_one_in_a_list_ends_the_repetition(
    native: ModuleType,
) -> None:
    table, out, after = torch.rand(4, 8), torch.zeros(1, 8), torch.zeros(1, 8)
    ids = torch.tensor([3], dtype=torch.int32)

    def gather(number_of_rows: int) -> None:
        addresses = (out.data_ptr(), table.data_ptr(), ids.data_ptr())
        native.embedding(*addresses, 1, 8, number_of_rows, 8, 8, 1.0, False, 0)

    native.record_begin()
    with pytest.raises(IndexError):
        gather(3)
    gather(4)
    normalize(native, after, out, table[0])
    calls = native.record_end()
    assert native.record_size(calls) == 2
    ids.fill_(9)
    after.zero_()
    with pytest.raises(IndexError, match="token id 9"):
        native.record_replay(calls)
    assert not after.any()
    ids.fill_(0)
    native.record_replay(calls)
    assert torch.equal(out, table[:1]) and after.any()


def test_other_threads_calls_are_not_kept(native: ModuleType) -> None:
    x, weight = torch.rand(1, 8), torch.rand(8)
    native.record_begin()
    other = threading.Thread(target=normalize, args=(native, x, x, weight))
    other.start()
    other.join()
    assert native.record_size(native.record_end()) == 0


def test_beginnings_and_ends_come_in_turn(native: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="not recording"):
        native.record_end()
    native.record_begin()
    with pytest.raises(RuntimeError, match="already"):
        native.record_begin()
    native.record_end()
    with pytest.raises(TypeError):
        native.record_replay(None)
