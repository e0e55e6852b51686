"""Rows made of numbers and read again: what 8 bits lose, and what they keep."""

import pytest
import torch

from hotshoe.slots.reference.rows import held, packed, unpacked
from hotshoe.types.rows import RowForm

#: The largest error of a number, relative to itself, or to the row's largest for integers.
LOST = {"int8": 0.5 / 127, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}


@pytest.mark.parametrize("kind", LOST)
@pytest.mark.parametrize("size", [1e-6, 1.0, 3e4])
def test_numbers_keep_their_size_and_keys_all_bits(kind, size):
    form, values = RowForm(512, 64, "bfloat16", kind), torch.randn(9, 576).bfloat16() * size
    rows = packed(form, values)
    assert rows.shape == (9, form.width) and rows.dtype == held(form) == torch.uint8
    numbers, keys = unpacked(form, rows).split((512, 64), dim=-1)
    assert torch.equal(keys, values[:, 512:].float())
    want = values[:, :512].float()
    largest = want.abs().amax(-1, keepdim=True)
    reach = largest if kind == "int8" else torch.maximum(want.abs(), largest * 2**-12)
    assert ((numbers - want).abs() <= LOST[kind] * 1.01 * reach).all()


def test_the_scale_stands_four_times_behind_the_numbers():
    form = RowForm(32, 8, "bfloat16", "float8_e4m3fn")
    values = torch.cat((torch.full((1, 32), 896.0), torch.zeros(1, 8)), dim=-1)
    row = packed(form, values)
    assert torch.equal(row[:, 32:48].view(torch.float32), torch.full((1, 4), 2.0))
    assert not packed(form, torch.zeros(1, 40))[:, :32].any()


@pytest.mark.parametrize("kind", LOST)
def test_nan_stays_nan(kind):
    form, values = RowForm(32, 0, "float32", kind), torch.randn(2, 32)
    values[0, 3] = torch.nan
    found = unpacked(form, packed(form, values))
    assert found[0].isnan().all() and found[1].isfinite().all()


def test_other_types_are_rounded_alone():
    form, values = RowForm(30, 6, "float32", "bfloat16"), torch.randn(4, 36)
    assert torch.equal(packed(form, values), values.bfloat16())
    assert torch.equal(unpacked(form, values.bfloat16()), values.bfloat16().float())
