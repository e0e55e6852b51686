"""How far a result may lie from the reference's, as data, and the comparison.

A result of type T may differ by its own rounding (relative to the result) and by the order and
precision of sums (relative to the magnitude of what was added up). Nothing else is allowed for,
so a term that is missing or counted twice shows. NaN never passes where a number is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Attributes:
    rounding: Allowed error relative to the result; a few roundings of the type.
    accumulation: Allowed error relative to the sum of magnitudes.
    smallest: Allowed error in any case, the step between the smallest numbers of the type, or the
        smallest normal number where subnormal ones may become zero.
    """

    rounding: float
    accumulation: float
    smallest: float


#: By the result's type. A unit roundoff is 2^-53, 2^-24, 2^-8 and 2^-11.
TOLERANCES = {
    "float64": Tolerance(rounding=1e-14, accumulation=1e-14, smallest=2**-1022),
    "float32": Tolerance(rounding=1e-5, accumulation=4e-6, smallest=2**-126),
    "bfloat16": Tolerance(rounding=2**-7, accumulation=2**-12, smallest=2**-126),
    "float16": Tolerance(rounding=2**-10, accumulation=2**-14, smallest=2**-23),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A comparison's outcome.

    Attributes:
        error: Largest error as a share of what is allowed; above 1 is wrong.
        message: What is wrong; empty when nothing is.
    """

    error: float
    message: str = ""


class Expected(Protocol):
    """What an output has to be."""

    def check(self, got: Tensor) -> Finding:
        """Compare an output, on the host, with what is expected."""
        ...


@dataclass(frozen=True, slots=True)
class Close:
    """A result within the tolerance of its type.

    Attributes:
        value: The reference's, float32 or float64.
        dtype: Name of the type that the output must have.
        magnitude: Sum of the magnitudes that were added up, broadcastable; None: |value|.
        slack: Further absolute error, where the definition itself has ties (quantized operands).
        through: Type that the result may have been rounded to on the way; None: `dtype`.
        nan: Where, broadcastable, NaN has to come out because NaN went in; None: nowhere.
    """

    value: Tensor
    dtype: str
    magnitude: Tensor | None = None
    slack: Tensor | float = 0.0
    through: str | None = None
    nan: Tensor | None = None

    def check(self, got: Tensor) -> Finding:
        if wrong := _form(got, self.value.shape, getattr(torch, self.dtype)):
            return wrong
        if not self.value.numel():
            return Finding(0.0)
        want = self.value.double()
        if self.nan is not None:
            want = want.masked_fill(self.nan, torch.nan)
        limit = TOLERANCES[self.through or self.dtype]
        magnitude = want.abs() if self.magnitude is None else self.magnitude.double()
        allowed = limit.rounding * want.abs() + limit.accumulation * magnitude
        allowed = allowed + (limit.smallest + self.slack)
        difference = (got.double() - want).abs()
        share = difference / allowed
        share = torch.where(got.isnan() | want.isnan(), torch.inf, share)
        if self.nan is not None:
            share = torch.where(self.nan, torch.where(got.isnan(), 0.0, torch.inf), share)
        worst = int(share.argmax())
        error = float(share.flatten()[worst])
        if error <= 1:
            return Finding(error)
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), want.shape))
        values = f"{float(got.flatten()[worst]):.6g} instead of {float(want.flatten()[worst]):.6g}"
        count = int((share > 1).sum())
        return Finding(
            error,
            f"{values} at {list(index)}, {error:.3g} times the tolerance of {self.dtype}; "
            f"{count} of {share.numel()} values are off",
        )


@dataclass(frozen=True, slots=True)
class Exact:
    """A result that is equal bit for bit, such as an input that must stay as it was."""

    value: Tensor

    def check(self, got: Tensor) -> Finding:
        if wrong := _form(got, self.value.shape, self.value.dtype):
            return wrong
        return bitwise(got, self.value)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens; where one differs, `acceptable(row)` says what rounding could have given.

    Attributes:
        value: [n] int64, the reference's.
        acceptable: Called only for rows that differ.
    """

    value: Tensor
    acceptable: Callable[[int], set[int]]

    def check(self, got: Tensor) -> Finding:
        if wrong := _form(got, self.value.shape, torch.int64):
            return wrong
        for row in (got != self.value).nonzero()[:, 0].tolist():
            token, choices = int(got[row]), self.acceptable(row)
            if token not in choices:
                return Finding(
                    float("inf"), f"token {token} in row {row} instead of {sorted(choices)}"
                )
        return Finding(0.0)


def bitwise(got: Tensor, want: Tensor) -> Finding:
    """Compare bit patterns, so that equal NaN are equal."""
    a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (got, want))
    if torch.equal(a, b):
        return Finding(0.0)
    rows = (a != b).view(want.numel(), -1).any(dim=1)
    first = int(rows.nonzero()[0, 0])
    return Finding(
        float("inf"),
        f"{int(rows.sum())} of {want.numel()} values differ, first {got.flatten()[first].item()} "
        f"instead of {want.flatten()[first].item()} at flat index {first}",
    )


def _form(got: object, shape: torch.Size, dtype: torch.dtype) -> Finding | None:
    """Object to an output of another kind, shape or type."""
    if not isinstance(got, Tensor):
        return Finding(float("inf"), f"returned {type(got).__name__}, not a tensor")
    if got.shape != shape or got.dtype != dtype:
        return Finding(
            float("inf"),
            f"returned {list(got.shape)} {got.dtype}, not {list(shape)} {dtype}",
        )
    return None
