"""RMS norm kernels against float64: sizes, strides, offsets, aliasing and poison."""

from types import ModuleType

import pytest
import torch

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Rounding of the result, and of float sums.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}
SHAPES = [(1, 1), (1, 8), (3, 100), (5, 1024), (40, 1001), (2, 8192)]


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    x = x.double()
    rms = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x / rms * (offset + weight.double())


def strided(rows: int, size: int, rng: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Rows inside a wider matrix whose other columns are NaN."""
    wide = torch.full((rows, size + 5), torch.nan, dtype=dtype)
    wide[:, :size] = torch.randn(rows, size, generator=rng)
    return wide[:, :size]


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, cancelled: torch.Tensor | float = 1e-2
) -> None:
    error = (actual.double() - expected).abs() / (expected.abs() + cancelled)
    assert not error.isnan().any()
    assert error.max() < TOLERANCE[actual.dtype]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(
    native: ModuleType,
    rows: int,
    size: int,
    offset: float,
    dtype: torch.dtype,
    rng: torch.Generator,
) -> None:
    x = strided(rows, size, rng, dtype)
    weight = torch.randn(size, generator=rng).to(dtype)
    out = torch.full((rows, size + 3), torch.nan, dtype=dtype)
    native.rms_norm(
        *(t.data_ptr() for t in (out, x, weight)),
        *(rows, size, out.stride(0), x.stride(0), 1e-3, offset, CODES[dtype]),
    )
    assert_close(out[:, :size], reference(x, weight, 1e-3, offset))
    assert out[:, size:].isnan().all()


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_add_rms_norm(
    native: ModuleType,
    rows: int,
    size: int,
    in_place: bool,
    dtype: torch.dtype,
    rng: torch.Generator,
) -> None:
    x, residual = strided(rows, size, rng, dtype), strided(rows, size, rng, dtype)
    weight = torch.randn(size, generator=rng).to(dtype)
    total = residual.double() + 0.22 * x.double()
    terms = residual.double().abs() + 0.22 * x.double().abs()
    out = x if in_place else torch.full((rows, size), torch.nan, dtype=dtype)
    native.add_rms_norm(
        *(t.data_ptr() for t in (out, x, residual, weight)),
        *(rows, size, out.stride(0), x.stride(0), residual.stride(0)),
        *(1e-6, 1.0, 0.22, CODES[dtype]),
    )
    assert_close(residual, total, terms)
    # The norm is of the rounded residual, so that it equals a norm of what was stored.
    assert_close(out, reference(residual, weight, 1e-6, 1.0))


def test_nan_stays_in_its_row(native: ModuleType, rng: torch.Generator) -> None:
    x = torch.randn(3, 50, generator=rng)
    x[1, 7] = torch.nan
    out, weight = torch.zeros(3, 50), torch.ones(50)
    native.rms_norm(*(t.data_ptr() for t in (out, x, weight)), *(3, 50, 50, 50, 1e-6, 0.0, 0))
    assert out.isnan().all(1).tolist() == [False, True, False]


def test_unknown_dtype_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="dtype code 3"):
        native.rms_norm(0, 0, 0, 1, 1, 1, 1, 1e-6, 0.0, 3)
