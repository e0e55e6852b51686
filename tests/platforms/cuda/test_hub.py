"""A kernel of the Hub is asked for by its version, and called as it documents; by a stand-in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.platforms.cuda.conftest import defect_of
from torch import Tensor
from torch.nn import functional

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec, QuantSpec
from hotshoe_conformance.cases.activation import Rows
from hotshoe_cuda import hub

H200 = DeviceFacts("cuda", "cpu", "NVIDIA H200", "sm_90", 1 << 37, 132)
SPEC = GatedActivationSpec(64, "silu", "bfloat16")


def gated(activation):
    def run(out: Tensor, x: Tensor) -> Tensor:
        assert x.is_contiguous() and out.shape[-1] * 2 == x.shape[-1]
        gate, up = x.float().chunk(2, -1)
        return out.copy_(activation(gate) * up)

    return run


KERNEL = SimpleNamespace(
    silu_and_mul=gated(functional.silu),
    gelu_and_mul=gated(functional.gelu),
    gelu_tanh_and_mul=gated(lambda x: functional.gelu(x, approximate="tanh")),
)


@pytest.fixture
def package(library) -> list[tuple[str, int]]:
    asked = []

    def get_kernel(repo_id: str, revision: str | None = None, version: int | None = None):
        asked.append((repo_id, version))
        return KERNEL

    library("kernels", "kernels", "0.17.1", get_kernel=get_kernel)
    return asked


@pytest.mark.parametrize("activation", hub.FUNCTIONS)
def test_it_is_called_as_it_documents(package, activation: str) -> None:
    spec = replace(SPEC, activation=activation)
    assert hub.supports(spec, H200).score == -1
    assert defect_of("gated_activation", hub.GatedActivation, spec, Rows(5), H200) == ""
    assert set(package) == {("kernels-community/activation", 1)}


def test_asking_loads_nothing(package) -> None:
    assert hub.supports(SPEC, H200).accepted
    assert not package


def test_without_the_package_it_is_refused() -> None:
    assert hub.supports(SPEC, H200).reason == "package kernels is not installed"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (replace(SPEC, activation="relu2"), "relu2 is not one of"),
        (replace(SPEC, dtype="float64"), "float64 is not one of"),
        (replace(SPEC, quant=QuantSpec("int8", "token")), "not quantized"),
    ],
)
def test_refusals(package, spec: GatedActivationSpec, reason: str) -> None:
    verdict = hub.supports(spec, H200)
    assert not verdict.accepted and reason in verdict.reason
