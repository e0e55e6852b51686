"""Intel's extension is refused where it is missing, and called as it documents; by a stand-in."""

import importlib.machinery
import sys
import types

import pytest
import torch
from tests.platforms.xpu.conftest import on_host
from torch import Tensor

from hotshoe.slots import AddNormSpec, GatedActivationSpec, NormSpec
from hotshoe.slots.reference import activation, norm
from hotshoe_xpu import ipex_ops

FACTS = on_host()
NORM = NormSpec(64, 1e-5, "bfloat16")
ADD = AddNormSpec(64, 1e-5, "bfloat16")
GATE = GatedActivationSpec(64, "silu", "bfloat16")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of the extension that are used, with its signatures."""

    def rms_norm(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.build_norm(NormSpec(64, eps, "bfloat16"), FACTS)(hidden_states, weight)

    def add_rms_norm(
        add: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, add_back: bool
    ) -> Tensor:
        assert bias is None and add_back
        normed, total = norm.build_add_norm(ADD, FACTS)(x, add.clone(), weight)
        add.copy_(total)
        return normed

    def silu_and_mul(x: Tensor, out: Tensor) -> None:
        out.copy_(activation.build(GATE, FACTS)(x))

    functional = types.SimpleNamespace(rms_norm=rms_norm, add_rms_norm=add_rms_norm)
    fake = types.ModuleType(ipex_ops.PACKAGE)
    fake.__spec__ = importlib.machinery.ModuleSpec(ipex_ops.PACKAGE, None)
    fake.llm = types.SimpleNamespace(functional=functional)
    monkeypatch.setitem(sys.modules, ipex_ops.PACKAGE, fake)
    monkeypatch.setattr("importlib.metadata.version", lambda name: torch.__version__)
    operators = types.SimpleNamespace(silu_and_mul=silu_and_mul)
    monkeypatch.setattr(torch.ops, "torch_ipex", operators, raising=False)


def test_without_the_package_nothing_is_offered() -> None:
    verdicts = [
        ipex_ops.supports_norm(NORM, FACTS),
        ipex_ops.supports_norm(ADD, FACTS),
        ipex_ops.supports_activation(GATE, FACTS),
    ]
    assert {v.reason for v in verdicts} == {"package intel_extension_for_pytorch is not installed"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (NormSpec(64, 1e-5, "float64"), "element type float64"),
        (NormSpec(64, 1e-5, "bfloat16", weight_offset=1.0), "nothing to the weight"),
        (AddNormSpec(64, 1e-5, "bfloat16", residual_scale=0.5), "no scale"),
    ],
)
def test_refusals(package, spec, reason: str) -> None:
    assert reason in ipex_ops.supports_norm(spec, FACTS).reason


def test_results_are_the_references(package) -> None:
    assert ipex_ops.supports_norm(NORM, FACTS).score == 30
    assert ipex_ops.supports_activation(GATE, FACTS).score == 30
    gelu = GatedActivationSpec(64, "gelu", "bfloat16")
    assert not ipex_ops.supports_activation(gelu, FACTS).accepted
    x, weight = torch.randn(5, 80).bfloat16()[:, :64], torch.randn(64).bfloat16()
    expected = norm.build_norm(NORM, FACTS)(x, weight)
    torch.testing.assert_close(ipex_ops.Norm(NORM, FACTS)(x, weight), expected)
    residual = torch.randn(5, 64).bfloat16()
    both = norm.build_add_norm(ADD, FACTS)(x, residual.clone(), weight)
    found = ipex_ops.AddNorm(ADD, FACTS)(x, residual, weight)
    torch.testing.assert_close(found, both)
    assert found[1] is residual
    gate = torch.randn(5, 128).bfloat16()
    torch.testing.assert_close(
        ipex_ops.GatedActivation(GATE, FACTS)(gate), activation.build(GATE, FACTS)(gate)
    )
