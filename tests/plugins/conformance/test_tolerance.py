"""Tolerances: what passes is rounding, and nothing else."""

import pytest
import torch

from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Tokens, bitwise

DTYPES = {name: getattr(torch, name) for name in TOLERANCES}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rounding_passes_and_four_times_that_does_not(dtype: str) -> None:
    value = torch.randn(1000, dtype=torch.float64)
    expected = Close(value, dtype)
    assert expected.check(value.to(DTYPES[dtype])).message == ""
    off = TOLERANCES[dtype].rounding * 4
    found = expected.check((value * (1 + off)).to(DTYPES[dtype]))
    assert found.error > 1
    assert f"times the tolerance of {dtype}" in found.message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_never_passes(bad: float) -> None:
    value = torch.ones(4)
    got = value.clone()
    got[2] = bad
    for magnitude in (None, torch.full((4,), 1e30)):
        found = Close(value, "float32", magnitude).check(got)
        assert found.error == float("inf") or found.error > 1
        assert "at [2]" in found.message
    spoilt = value.clone()
    spoilt[2] = float("nan")
    assert Close(spoilt, "float32").check(value).message


def test_where_nan_went_in_it_has_to_come_out_and_nowhere_else() -> None:
    value = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan]])
    expected = Close(value, "float32", nan=torch.tensor([[False], [True]]))
    assert expected.check(value.clone()).message == ""
    for row, column, instead in ((1, 0, 3.0), (1, 1, float("inf")), (0, 1, float("nan"))):
        got = value.clone()
        got[row, column] = instead
        assert f"at [{row}, {column}]" in expected.check(got).message


def test_sums_may_differ_by_the_order_of_their_terms() -> None:
    value, magnitude = torch.zeros(1), torch.full((1,), 1000.0)
    assert Close(value, "float32", magnitude).check(torch.tensor([1e-3])).message == ""
    assert Close(value, "float32", magnitude).check(torch.tensor([1e-1])).message


def test_form_comes_first() -> None:
    expected = Close(torch.ones(2, 3), "float32")
    assert "returned [3, 2]" in expected.check(torch.ones(3, 2)).message
    assert "returned NoneType" in expected.check(None).message
    assert Close(torch.ones(0, 3), "float32").check(torch.ones(0, 3)).message == ""


def test_bit_patterns() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert bitwise(nan.clone(), nan).message == ""
    found = bitwise(torch.tensor([0.0, 1.0]), nan)
    assert "1 of 2 values differ, first 0.0 instead of nan at flat index 0" in found.message
    assert Exact(torch.tensor([0.0])).check(torch.tensor([-0.0])).message


def test_tokens_may_differ_only_where_rounding_decides() -> None:
    expected = Tokens(torch.tensor([3, 5]), lambda row: {5, 6} if row == 1 else {3})
    assert expected.check(torch.tensor([3, 6])).message == ""
    assert "token 6 in row 0 instead of [3]" in expected.check(torch.tensor([6, 5])).message
    assert expected.check(torch.tensor([3, 5], dtype=torch.int32)).message
