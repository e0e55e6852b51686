"""What SGLang gets, with a stand-in of its classes and hooks of version 0.5.23."""

from enum import Enum
from types import SimpleNamespace

import pytest
import torch
from tests.bridge.conftest import stand_in
from torch import nn
from torch.nn import functional as F

from hotshoe_bridge import sglang, versions

ROOT = "sglang.srt"


class RMSNorm(nn.Module):
    offset = 0.0

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(size)), 1e-5

    def forward_native(self, x, residual=None, post_residual_addition=None, quant_linear=None):
        total = x if residual is None else x + residual
        y = F.rms_norm(total, total.shape[-1:], self.weight + self.offset, self.variance_epsilon)
        return y if residual is None else (y, total)

    def forward_cuda(self, x, residual=None, post_residual_addition=None, quant_linear=None):
        raise AssertionError("replaced")

    def forward_with_allreduce_fusion(self, x):
        return "not replaced"


class GemmaRMSNorm(RMSNorm):
    offset = 1.0

    def forward_cpu(self, x, residual=None, post_residual_addition=None):
        raise AssertionError("replaced")


class SiluAndMul(nn.Module):
    def forward_native(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def forward_aiter(self, x):
        raise AssertionError("replaced")


class Registry:
    """The least of that engine's registry: replaces at once what its own replaces later."""

    @staticmethod
    def register(target: str, hook, kind) -> None:
        assert kind is HookType.REPLACE
        *_, owner, name = target.split(".")
        setattr(globals()[owner], name, hook)


HookType = Enum("HookType", ("REPLACE",))


@pytest.fixture
def engine(monkeypatch):
    seen = SimpleNamespace(methods={}, cpu={}, choices=["fp8"])
    modules = {
        f"{ROOT}.layers.activation": {"SiluAndMul": SiluAndMul},
        f"{ROOT}.layers.layernorm": {"RMSNorm": RMSNorm, "GemmaRMSNorm": GemmaRMSNorm},
        f"{ROOT}.plugins.hook_registry": {"HookRegistry": Registry, "HookType": HookType},
        f"{ROOT}.arg_groups.choices": {"add_quantization_method_choices": seen.choices.extend},
        f"{ROOT}.layers.quantization": {
            "QUANTIZATION_METHODS": seen.methods,
            "CPU_QUANTIZATION_METHODS": seen.cpu,
        },
        f"{ROOT}.layers.linear": {"LinearBase": nn.Linear},
        f"{ROOT}.layers.quantization.base_config": {
            "LinearMethodBase": object,
            "QuantizationConfig": object,
        },
        f"{ROOT}.layers.quantization.unquant": {"UnquantizedLinearMethod": object},
    }
    stand_in(monkeypatch, modules)
    for kind in (RMSNorm, GemmaRMSNorm, SiluAndMul):
        for name in sglang.ways(kind):
            monkeypatch.setattr(kind, name, getattr(kind, name))
    monkeypatch.setattr(versions, "_version", lambda package: "0.5.23")
    monkeypatch.setenv(sglang.VARIABLE, "cpu")
    sglang._register.cache_clear()
    return seen


@torch.inference_mode()
def test_norms_and_activations_compute_what_the_engine_does(engine) -> None:
    sglang.register()
    sglang.register()  # as a host that loads its plugins twice
    x, residual = torch.randn(2, 5, 24)
    for norm, way in ((RMSNorm(24), "forward_cuda"), (GemmaRMSNorm(24), "forward_cpu")):
        forward = getattr(norm, way)
        assert torch.allclose(forward(x), norm.forward_native(x), atol=1e-5)
        got = forward(x, residual.clone(), post_residual_addition=None)
        for one, want in zip(got, norm.forward_native(x, residual), strict=True):
            assert torch.allclose(one, want, atol=1e-5)
        assert norm.forward_with_allreduce_fusion(x) == "not replaced"
    gated = SiluAndMul()
    assert torch.allclose(gated.forward_aiter(x), gated.forward_native(x), atol=1e-5)


def test_methods_of_quantization_are_offered(engine) -> None:
    sglang.register()
    assert {"hotshoe", "hotshoe_int8"} <= engine.methods.keys()
    assert engine.methods == engine.cpu
    assert engine.choices == ["fp8", *engine.methods]
    config = engine.methods["hotshoe"].from_config({})
    assert config.get_quant_method(nn.Module(), "model.layers.0.mlp.experts") is None
    four = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    stored = engine.methods["hotshoe"].from_config(four)
    with pytest.raises(ValueError, match="has experts, which are not bridged"):
        stored.get_quant_method(nn.Module(), "model.layers.0.mlp.experts")
    assert stored.get_quant_method(nn.Module(), "model.layers.0.self_attn.attn") is None


@pytest.mark.usefixtures("engine")
def test_nothing_without_a_platform_and_nothing_of_other_versions(monkeypatch) -> None:
    monkeypatch.setattr(versions, "_version", lambda package: "0.5.24")
    with pytest.raises(RuntimeError, match=r"here is SGLang 0\.5\.24"):
        sglang.register()
    monkeypatch.delenv(sglang.VARIABLE)
    sglang.register()


def test_a_class_without_ways_is_refused() -> None:
    with pytest.raises(RuntimeError, match="finds no method to replace in Module"):
        sglang.ways(nn.Module)
