"""The linear reference: plain against float64, int8 against integers counted out."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import FORMATS, Linear, quantize_rows, quantized

FACTS = DeviceFacts("test", "cpu", "", "", 1 << 30, 1)
INT8 = {
    "weight": QuantSpec("int8", "channel", online=True),
    "activation": QuantSpec("int8", "token", dynamic=True),
}


def load(spec, weight, bias, parts):
    op = Linear(spec, FACTS)
    tensors = {"weight": weight.split(parts)}
    if bias is not None:
        tensors["bias"] = bias.split(parts)
    op.load(tensors)
    return op


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("parts", [[40], [24, 8, 8]])
def test_plain(bias, parts):
    weight, x = torch.randn(40, 56), torch.randn(9, 60)[:, :56]
    offset = torch.randn(40) if bias else None
    op = load(LinearSpec(56, 40, "float32", bias=bias), weight, offset, parts)
    expected = x.double() @ weight.double().T + (offset.double() if bias else 0.0)
    torch.testing.assert_close(op(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert op.nbytes() == 4 * (40 * 56 + (40 if bias else 0))


def test_the_checkpoints_type_gives_way_to_the_models():
    weight, x = torch.randn(8, 16).bfloat16(), torch.randn(3, 16)
    op = load(LinearSpec(16, 8, "float32"), weight, None, [8])
    torch.testing.assert_close(op(x), x @ weight.float().T)


def test_out_dtype():
    spec = LinearSpec(16, 8, "bfloat16", out_dtype="float32")
    op = load(spec, torch.randn(8, 16), None, [8])
    assert op(torch.randn(3, 16).bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_int8_is_the_product_of_the_integers(bias):
    weight, x = torch.randn(24, 33) * torch.rand(24, 1) * 9, torch.randn(5, 33) * 3
    offset = torch.randn(24) if bias else None
    op = load(LinearSpec(33, 24, "float32", bias=bias, **INT8), weight, offset, [16, 8])
    (wq, ws), (xq, xs) = quantize_rows(weight), quantize_rows(x)
    exact = (xq.long() @ wq.long().T).double() * xs.double()[:, None] * ws.double()
    exact = exact + (offset.double() if bias else 0.0)
    torch.testing.assert_close(op(x).double(), exact, rtol=1e-6, atol=1e-5)
    assert op.nbytes() == 24 * 33 + 4 * 24 + (4 * 24 if bias else 0)


def test_int8_is_near_the_unquantized_product():
    weight, x = torch.randn(64, 256), torch.randn(16, 256)
    out = load(LinearSpec(256, 64, "float32", **INT8), weight, None, [64])(x)
    exact = x @ weight.T
    assert (out - exact).norm() < 0.02 * exact.norm()


@given(st.integers(1, 6), st.integers(1, 40), st.floats(-30, 30), st.randoms())
def test_rows_are_quantized_to_the_nearest_step(rows, columns, exponent, rng):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    x = torch.randn(rows, columns, generator=generator) * 10.0**exponent
    values, scale = quantize_rows(x)
    assert values.dtype == torch.int8 and scale.shape == (rows,)
    assert values.abs().amax(1).eq(127).all()
    steps = x.double() / scale.double()[:, None]
    assert (values.double() - steps).abs().max() <= 0.5 + 1e-4


@given(st.integers(1, 6), st.integers(1, 40), st.floats(-20, 20), st.randoms())
def test_fp8_rows_are_rounded_to_the_nearest_value(rows, columns, exponent, rng):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    x = torch.randn(rows, columns, generator=generator) * 10.0**exponent
    values, scale = quantize_rows(x, "fp8_e4m3")
    assert values.dtype == torch.float8_e4m3fn and values.float().isfinite().all()
    assert values.float().abs().amax(1).eq(448).all()
    exact = x.double() / scale.double()[:, None]
    # Three bits of mantissa; below 2^-6 values are equally spaced.
    spacing = 2.0 ** (exact.abs().clamp(min=2.0**-6).log2().floor() - 3)
    assert ((values.double() - exact).abs() <= 0.5 * spacing + 1e-4).all()


def test_fp8_is_the_product_of_what_is_stored():
    weight, x = torch.randn(24, 33) * torch.rand(24, 1) * 9, torch.randn(5, 33) * 3
    operands = {
        "weight": QuantSpec("fp8_e4m3", "channel", online=True),
        "activation": QuantSpec("fp8_e4m3", "token", dynamic=True),
    }
    op = load(LinearSpec(33, 24, "float32", **operands), weight, None, [16, 8])
    (wq, ws), (xq, xs) = (quantize_rows(t, "fp8_e4m3") for t in (weight, x))
    exact = (xq.double() @ wq.double().T) * xs.double()[:, None] * ws.double()
    torch.testing.assert_close(op(x).double(), exact, rtol=1e-6, atol=1e-5)
    assert op.nbytes() == 24 * 33 + 4 * 24


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3"])
def test_groups_of_a_row_may_come_quantized(format):
    """As a norm or an activation hands them over; the last group is shorter."""
    group = QuantSpec(format, "group", 8, dynamic=True)
    spec = LinearSpec(20, 6, "float32", weight=QuantSpec(format, "channel"), activation=group)
    assert spec.row_quant == group
    weight, scale = quantize_rows(torch.randn(6, 20), format)
    op = Linear(spec, FACTS)
    op.load({"weight": [weight], "weight_scale": [scale]})
    x = torch.randn(5, 20)
    x[:, 8:] *= 100
    values, scales = quantized(x, group)
    assert values.shape == (5, 20) and scales.shape == (5, 3)
    wide = values.double() * scales.double().repeat_interleave(8, 1)[:, :20]
    assert ((wide - x).abs() <= scales.double().repeat_interleave(8, 1)[:, :20] * 16.1).all()
    exact = wide @ (weight.double() * scale.double()[:, None]).T
    torch.testing.assert_close(op((values, scales)).double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(op((values, scales)), op(x))


def test_how_x_may_come_quantized():
    four = QuantSpec("fp4_e2m1", "group", 16, dynamic=True)
    token = QuantSpec("int8", "token", dynamic=True)
    fixed = QuantSpec("int8", "tensor")
    spec = LinearSpec(32, 8, "float32", weight=QuantSpec("int8", "channel"))
    assert [replace(spec, activation=a).row_quant for a in (None, four, fixed)] == [None] * 3
    assert replace(spec, activation=token).row_quant == token
    permuted = replace(spec, weight=replace(spec.weight, permuted=True), activation=token)
    assert permuted.row_quant is None


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_of_zeros_is_quantized_to_zeros(format):
    values, scale = quantize_rows(torch.zeros(2, 8), format)
    assert not values.float().any() and scale.isfinite().all() and (scale > 0).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_gives_no_finite_result(format, value):
    operands = {
        "weight": QuantSpec(format, "channel", online=True),
        "activation": QuantSpec(format, "token", dynamic=True),
    }
    op = load(LinearSpec(8, 4, "float32", **operands), torch.ones(4, 8), None, [4])
    x = torch.ones(3, 8)
    x[1, 2] = value
    assert op(x).isfinite().all(1).tolist() == [True, False, True]
