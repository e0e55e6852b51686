"""DeepGEMM is refused without its package, and called as it documents; here by a stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import ON_DEVICE, device_facts
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_cuda import deepgemm
from hotshoe_triton import blocks

GROUPS = QuantSpec("fp8_e4m3", "group", 128, dynamic=True)
SPEC = LinearSpec(384, 256, "bfloat16", weight=blocks.WEIGHT, activation=GROUPS)
H200 = replace(device_facts("sm_90", units=132), device="cpu")
CALLS: list[tuple[int, ...]] = []
#: The stand-in computes on the CPU, and Triton's kernel beside it must be interpreted.
interpreted = pytest.mark.skipif(ON_DEVICE, reason="interprets kernels, and there is a GPU")


def fp8_gemm_nt(
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
) -> None:
    """Compute what the package does. Its signature is that of version 2.6, as far as it is used."""
    CALLS.append(tuple(d.shape))
    (x, x_scale), (weight, scale) = a, b
    assert x.dtype == weight.dtype == torch.float8_e4m3fn
    assert x.stride(-1) == weight.stride(-1) == d.stride(-1) == 1 and d.dtype == torch.bfloat16
    assert x_scale.shape == (len(x), x.shape[1] // 128)
    assert scale.shape == (len(weight) // 128, weight.shape[1] // 128)
    assert x_scale.dtype == scale.dtype == torch.float32
    rows = x.float() * x_scale.repeat_interleave(128, 1)
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    d.copy_(rows @ (weight.float() * wide).T)


@pytest.fixture
def package(library) -> None:
    library("deep_gemm", "deep_gemm", "2.6.1+0274ad7", fp8_gemm_nt=fp8_gemm_nt)
    CALLS.clear()


def stored(*sizes: int, bias: bool = False) -> dict[str, list[Tensor]]:
    made = {
        "weight": [torch.randn(n, 384).to(torch.float8_e4m3fn) for n in sizes],
        "weight_scale": [torch.rand(-(-n // 128), 3) + 0.1 for n in sizes],
    }
    return made | ({"bias": [torch.randn(n) for n in sizes]} if bias else {})


@interpreted
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_tritons_kernel(package, bias: bool) -> None:
    spec = replace(SPEC, bias=bias)
    assert deepgemm.supports(spec, H200).score == 40
    tensors, x = stored(128, 128, bias=bias), torch.randn(5, 400).bfloat16()[:, :384]
    mine, same = deepgemm.Linear(spec, H200), blocks.Linear(spec, H200)
    for op in (mine, same):
        op.load(tensors)
    torch.testing.assert_close(mine(x), same(x), rtol=2e-2, atol=0.2)
    assert CALLS == [(5, 256)]
    assert mine(x[:0]).shape == (0, 256)


@interpreted
def test_parts_that_share_a_block_are_left_to_triton(package) -> None:
    op = deepgemm.Linear(SPEC, H200)
    op.load(stored(96, 160))
    assert op(torch.randn(2, 384).bfloat16()).isfinite().all()
    assert not CALLS


def test_without_the_package_it_is_refused() -> None:
    assert deepgemm.supports(SPEC, H200).reason == "package deep_gemm is not installed"


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_100"), "on sm_90 alone, not on sm_100"),
        (replace(SPEC, dtype="float16"), H200, "float16 are not bfloat16"),
        (replace(SPEC, out_features=200), H200, "200 rows of a weight"),
        (replace(SPEC, activation=None), H200, "are not 8-bit floats with scales"),
    ],
)
def test_refusals(package, spec: LinearSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = deepgemm.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason
