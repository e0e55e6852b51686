"""Which products go to the library, in which format, and what it lacks; on the interpreter."""

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_rocm.linear import Linear
from hotshoe_triton.quantize import format_of, quantize_weight

N, K, ROWS = 48, 64, 70


def eight_bits(out_dtype: str = "bfloat16", bias: bool = False) -> LinearSpec:
    weight = QuantSpec("fp8_e4m3", "channel", online=True)
    activation = QuantSpec("fp8_e4m3", "token", dynamic=True)
    return LinearSpec(K, N, "bfloat16", bias, weight, activation, out_dtype)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """What was handed to the library, which here multiplies in float32."""
    called: list[torch.dtype] = []

    def multiply(a, b, scale_a, scale_b, bias=None, *, out_dtype, use_fast_accum, out) -> None:
        called.append(a.dtype)
        assert a.dtype == b.dtype and out_dtype is torch.bfloat16
        assert b.stride(0) == 1, "column-major, as the library wants it"
        product = (a.float() * scale_a) @ (b.float() * scale_b)
        out.copy_(product if bias is None else product + bias.float())

    monkeypatch.setattr(torch, "_scaled_mm", multiply)
    return called


def check(spec: LinearSpec, arch: str, rows: int, tolerance: float) -> None:
    op = Linear(spec, device_facts(arch))
    weight, x = torch.randn(spec.out_features, K).bfloat16(), torch.randn(rows, K).bfloat16()
    tensors = {"weight": [weight]}
    bias = torch.randn(spec.out_features).bfloat16() if spec.bias else None
    if bias is not None:
        tensors["bias"] = [bias]
    op.load(tensors)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    # Quantized here: the interpreter does not know every format of 8-bit floats.
    kind = format_of("fp8_e4m3", device_facts(arch))
    found = op(x if spec.weight is None else quantize_weight(x, kind))
    assert found.dtype == getattr(torch, spec.out_dtype or spec.dtype)
    assert (found.double() - expected).norm() / expected.norm() < tolerance


@pytest.mark.parametrize(
    ("arch", "format"),
    [
        ("gfx942", torch.float8_e4m3fnuz),
        ("gfx950", torch.float8_e4m3fn),
        ("gfx1201", torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_large_products_use_the_architectures_format(library, arch, format, bias) -> None:
    check(eight_bits(bias=bias), arch, ROWS, 0.06)
    assert library == [format]


def test_results_that_the_library_does_not_write(library) -> None:
    check(eight_bits("float32"), "gfx950", ROWS, 0.06)
    assert library == []


def test_widths_that_the_library_does_not_take(library) -> None:
    spec = LinearSpec(K, 40, "bfloat16", False, *(eight_bits().weight, eight_bits().activation))
    check(spec, "gfx950", ROWS, 0.06)
    assert library == []


@pytest.mark.parametrize("rows", [1, 64, ROWS, 130])
def test_wide_results_of_any_number_of_rows(rows: int, monkeypatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("output type float is not supported for ROCm")

    monkeypatch.setattr(torch.ops.aten.mm, "dtype_out", fail)
    check(LinearSpec(K, N, "bfloat16", out_dtype="float32"), "gfx942", rows, 1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_plain_products_of_many_rows(bias: bool) -> None:
    check(LinearSpec(K, N, "bfloat16", bias), "gfx942", ROWS, 0.004)
