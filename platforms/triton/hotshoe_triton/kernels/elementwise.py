"""Device functions that several kernels share: activations, rounding, quantizing of a row."""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

LOG2E = tl.constexpr(1.4426950408889634)
#: Adding and subtracting this rounds a float32 below 2**22 to the nearest integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def exp(x):
    """Return exp(x) of float32 values; what float32 nearly loses may be 0."""
    if cuda_capability_geq(9):
        # The compiler's own has two multiplications and a comparison more.
        y = tl.inline_asm_elementwise(
            "mul.f32 $0, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, $0;",
            "=f,f", [x], tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        y = tl.exp(x)
    return y


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) without overflow."""
    if cuda_capability_geq(9):
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + exp(-x)], tl.float32, is_pure=True, pack=1
        )
    else:
        y = 1 / (1 + tl.exp2(tl.minimum(x * -LOG2E, 126.0)))
    return y


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Return float32 values as they are once rounded to a type."""
    if cuda_capability_geq(9) and dtype == tl.bfloat16:
        # The compiler rounds one by one where it widens again, by the unit that makes exponentials.
        y = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $1, $3, $2; shl.b32 $0, $1, 16; and.b32 $1, $1, 0xffff0000;",
            "=&r,=&r,r,r", [x], tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        y = x.to(dtype).to(tl.float32)
    return y


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Return silu, gelu or gelu_tanh of float32 values."""
    if ACTIVATION == "silu":
        y = x * sigmoid(x)
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:
        y = x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return y


@triton.jit
def largest_bits(x):
    """Return the bits of the largest magnitude of a float32 row, as int32.

    Without their signs floats are in the order of their bits, and NaN is behind infinity, where a
    maximum of floats would pass over it.
    """
    return tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)


@triton.jit
def row_scale(largest, LIMIT: tl.constexpr):
    """Return the scale that maps the largest magnitude, given by its bits, to the format's limit.

    It is 1 for zeros, and NaN for a row that holds NaN, as no integer is.
    """
    scale = tl.div_rn(largest.to(tl.float32, bitcast=True), LIMIT)
    return tl.where(largest == 0, 1.0, scale)


@triton.jit
def quantize(x, scale, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Return x / scale in an 8-bit type, to the nearest, ties to even; what is NaN as integer 0.

    Comparisons let NaN through, where the hardware's minimum would make a number of it.
    """
    return narrowed(tl.div_rn(x, scale), LIMIT, dtype)


@triton.jit
def narrowed(y, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Return numbers in an 8-bit type; see `quantize`."""
    y = tl.where(y > LIMIT, LIMIT, y)
    y = tl.where(y < -LIMIT, -LIMIT, y)
    if dtype == tl.int8:
        y = tl.where(y == y, (y + ROUNDER) - ROUNDER, 0.0)
    return y.to(dtype)


@triton.jit
def quantize_row(x, scale, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Return `quantize` of a row by its own scale, a scalar, of which no number is beyond LIMIT.

    A division of each number takes longer than a row's way through memory. The quotient by the
    inverse, corrected by what it leaves, is the rounded one where neither over- nor underflows.
    Source: Markstein 1990, Computation of elementary functions on the IBM RISC System/6000.
    """
    if (scale > 1e-30) & (scale < 1e30):
        inverse = tl.div_rn(1.0, scale)
        y = x * inverse
        y = tl.fma(tl.fma(-y, scale, x), inverse, y)
    else:
        y = tl.div_rn(x, scale)
    return narrowed(y, LIMIT, dtype)
