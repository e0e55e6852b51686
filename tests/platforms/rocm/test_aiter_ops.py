"""AITER is refused without the package, and called as it documents; here by a stand-in."""

import importlib.machinery
import sys
import types

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, GatedActivationSpec, NormSpec, QuantSpec, Verdict
from hotshoe.slots.reference import activation, norm
from hotshoe_rocm import aiter_ops
from hotshoe_triton import packages

MI300X = DeviceFacts("rocm", "cpu", "AMD Instinct MI300X", "gfx942", 1 << 37, 304)
NORM = NormSpec(64, 1e-5, "bfloat16")
ADD = AddNormSpec(64, 1e-5, "bfloat16")
GATE = GatedActivationSpec(64, "silu", "bfloat16")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of `aiter` that are used, with its signatures."""
    fake = types.ModuleType("aiter")
    fake.__spec__ = importlib.machinery.ModuleSpec("aiter", None)

    def rms_norm(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return norm.build_norm(NormSpec(64, epsilon, "bfloat16"), MI300X)(input, weight)

    def rmsnorm2d_fwd_with_add(
        out: Tensor,
        input: Tensor,
        residual_in: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        epsilon: float,
    ) -> None:
        spec = AddNormSpec(64, epsilon, "bfloat16")
        normed, total = norm.build_add_norm(spec, MI300X)(input, residual_in.clone(), weight)
        out.copy_(normed)
        residual_out.copy_(total)

    def silu_and_mul(out: Tensor, input: Tensor) -> None:
        out.copy_(activation.build(GATE, MI300X)(input))

    for function in (rms_norm, rmsnorm2d_fwd_with_add, silu_and_mul):
        setattr(fake, function.__name__, function)
    monkeypatch.setitem(sys.modules, "aiter", fake)
    installed(monkeypatch, "0.1.7.post2")


def installed(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """Let the metadata of what is installed name a release of the package."""
    others = packages.installed
    known = {aiter_ops.DISTRIBUTION: release}
    monkeypatch.setattr(packages, "installed", lambda name: known.get(name) or others(name))


def verdicts(facts: DeviceFacts) -> list[Verdict]:
    return [
        aiter_ops.supports_norm(NORM, facts),
        aiter_ops.supports_norm(ADD, facts),
        aiter_ops.supports_activation(GATE, facts),
    ]


def test_without_the_package_nothing_is_offered() -> None:
    assert {v.reason for v in verdicts(MI300X)} == {"package amd-aiter is not installed"}


def test_other_releases_are_refused(monkeypatch) -> None:
    installed(monkeypatch, "0.2.0")
    expected = "amd-aiter 0.2.0 is installed, and known are 0.1"
    assert {v.reason for v in verdicts(MI300X)} == {expected}


def test_asking_imports_nothing(package, monkeypatch) -> None:
    monkeypatch.setattr(aiter_ops, "package", lambda: pytest.fail("imported"))
    assert {v.score for v in verdicts(MI300X)} == {40}, "below Triton's, until one has seen it run"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (NormSpec(64, 1e-5, "float32"), "element type float32"),
        (NormSpec(64, 1e-5, "bfloat16", weight_offset=1.0), "nothing to the weight"),
        (NormSpec(64, 1e-5, "bfloat16", quant=QuantSpec("int8", "token")), "not quantized"),
        (AddNormSpec(64, 1e-5, "bfloat16", residual_scale=0.5), "no scale"),
        (GatedActivationSpec(64, "gelu", "bfloat16"), "not silu"),
        (GatedActivationSpec(64, "silu", "bfloat16", QuantSpec("int8", "token")), "not quantized"),
    ],
)
def test_refusals(package, spec, reason: str) -> None:
    gated = isinstance(spec, GatedActivationSpec)
    supports = aiter_ops.supports_activation if gated else aiter_ops.supports_norm
    verdict = supports(spec, MI300X)
    assert not verdict.accepted and reason in verdict.reason


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100", "gfx1201"])
def test_other_parts_are_refused(package, arch: str) -> None:
    facts = DeviceFacts("rocm", "cpu", "a card", arch, 1 << 34, 96)
    assert all(f"no kernels for {arch}" in v.reason for v in verdicts(facts))


def test_results_are_the_references(package) -> None:
    x, weight = torch.randn(5, 80).bfloat16()[:, :64], torch.randn(64).bfloat16()
    torch.testing.assert_close(
        aiter_ops.Norm(NORM, MI300X)(x, weight), norm.build_norm(NORM, MI300X)(x, weight)
    )
    residual = torch.randn(5, 64).bfloat16()
    expected = norm.build_add_norm(ADD, MI300X)(x, residual.clone(), weight)
    found = aiter_ops.AddNorm(ADD, MI300X)(x, residual, weight)
    torch.testing.assert_close(found, expected)
    assert found[1] is not residual
    gate = torch.randn(5, 128).bfloat16()
    torch.testing.assert_close(
        aiter_ops.GatedActivation(GATE, MI300X)(gate), activation.build(GATE, MI300X)(gate)
    )
