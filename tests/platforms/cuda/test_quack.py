"""QuACK is refused without its package, and called as it documents; here by a stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.platforms.cuda.conftest import defect_of
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, NormSpec, QuantSpec
from hotshoe_conformance.cases.norm import Rows
from hotshoe_cuda import quack

H200 = DeviceFacts("cuda", "cpu", "NVIDIA H200", "sm_90", 1 << 37, 132)
NORM = NormSpec(64, 1e-5, "bfloat16")
ADD = AddNormSpec(64, 1e-5, "bfloat16")


def rmsnorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute what the package does. Its signature is that of version 0.6.4."""
    assert x.is_contiguous() and weight is not None
    total = x if residual is None else (x.float() + residual.float()).to(residual.dtype)
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = (wide * scale * (weight.float() + weight_offset)).to(x.dtype)
    return (out, total) if prenorm else out


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", quack.DTYPES)
def test_it_is_called_as_it_documents(library, dtype: str, offset: float) -> None:
    library("quack", "quack-kernels", "0.6.4", rmsnorm=rmsnorm)
    norm = replace(NORM, dtype=dtype, weight_offset=offset)
    add = replace(ADD, dtype=dtype, weight_offset=offset)
    assert quack.supports(norm, H200).score == quack.supports(add, H200).score == 40
    assert defect_of("rms_norm", quack.Norm, norm, Rows(5), H200) == ""
    assert defect_of("add_rms_norm", quack.AddNorm, add, Rows(5), H200) == ""


def test_without_the_package_it_is_refused() -> None:
    assert quack.supports(NORM, H200).reason == "package quack-kernels is not installed"


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (NORM, replace(H200, arch="sm_86"), "no kernels for sm_86"),
        (replace(NORM, dtype="float64"), H200, "float64 is not one of"),
        (replace(NORM, quant=QuantSpec("int8", "token")), H200, "not quantized"),
        (replace(ADD, residual_scale=0.5), H200, "no scale"),
    ],
)
def test_refusals(library, spec: NormSpec | AddNormSpec, facts: DeviceFacts, reason: str) -> None:
    library("quack", "quack-kernels", "0.6.4", rmsnorm=rmsnorm)
    verdict = quack.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_other_releases_are_refused(library) -> None:
    library("quack", "quack-kernels", "0.3.11")
    assert quack.supports(NORM, H200).reason == (
        "quack-kernels 0.3.11 is installed, and known are 0.5, 0.6"
    )
