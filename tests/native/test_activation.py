"""Gated activation kernels against float64 torch: kinds, sizes, extremes and poison."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}
FLOAT16_TINY = 2**-24  # below the smallest normal float16, precision is absolute
KINDS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    F.silu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (1, 24), (7, 333), (33, 3072)])
def test_matches_float64(
    native: ModuleType,
    rows: int,
    size: int,
    kind: int,
    dtype: torch.dtype,
    rng: torch.Generator,
) -> None:
    wide = torch.full((rows, 2 * size + 3), torch.nan, dtype=dtype)
    x = wide[:, : 2 * size]
    x.copy_(torch.randn(rows, 2 * size, generator=rng) * 4)
    out = torch.full((rows, size + 1), torch.nan, dtype=dtype)
    native.gated_activation(
        *(out.data_ptr(), x.data_ptr(), rows, size, out.stride(0), x.stride(0)),
        *(kind, CODES[dtype]),
    )
    gate, up = x.double().chunk(2, dim=-1)
    expected = KINDS[kind](gate) * up
    # Where the activation nearly vanishes, its error is that of a number as large as the gate.
    allowed = TOLERANCE[dtype] * (expected.abs() + (1e-3 + 0.1 * gate.abs()) * up.abs())
    allowed += FLOAT16_TINY
    error = (out[:, :size].double() - expected).abs()
    assert (error <= allowed).all()  # false for NaN
    assert out[:, size:].isnan().all()


@pytest.mark.parametrize("kind", range(3))
def test_extremes(native: ModuleType, kind: int) -> None:
    gate = torch.tensor([-1e30, -200.0, -89.0, -0.0, 0.0, 89.0, 200.0, 1e30, torch.nan])
    x = torch.cat([gate, torch.ones(9)])[None]
    out = torch.full((1, 9), torch.nan)
    native.gated_activation(out.data_ptr(), x.data_ptr(), 1, 9, 9, 18, kind, 0)
    expected = torch.tensor([0, 0, 0, 0, 0, 89.0, 200.0, 1e30])
    torch.testing.assert_close(out[0, :8], expected, rtol=1e-6, atol=1e-30)
    assert out[0, 8].isnan()


def test_unknown_kind_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="activation code 3"):
        native.gated_activation(0, 0, 1, 1, 1, 2, 3, 0)
