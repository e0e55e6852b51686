"""Classes for vLLM, with a stand-in for that engine: their numbers, and what they register.

Abstract methods and parameters of the stand-in are those of vllm-project/vllm: `CustomOp` as of
August 2026, `QuantizationConfig` and `QuantizeMethodBase` at 026bb17, norms at 00cba79.
"""

import inspect
import sys
from abc import ABC, abstractmethod
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotshoe_bridge import vllm

REGISTERED: dict[str, type] = {}


class StandIn(nn.Module):
    """The least of `CustomOp`: classes by the name of the one they stand for."""

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        assert (name or cls.__name__) not in REGISTERED, "Duplicate op name"
        REGISTERED[name or cls.__name__] = _decorated_op_cls
        return _decorated_op_cls


class RMSNorm(StandIn):
    offset = 0.0

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon, self.variance_size_override = eps, None

    def forward_native(self, x, residual=None):
        total = x if residual is None else x + residual
        y = F.rms_norm(total, total.shape[-1:], self.weight + self.offset, self.variance_epsilon)
        return y if residual is None else (y, total)

    def forward_some_device(self, x, residual=None):
        raise AssertionError("replaced")


class GemmaRMSNorm(RMSNorm):
    offset = 1.0


class SiluAndMul(StandIn):
    def forward_native(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class LinearBase(nn.Module):
    """A layer with a weight."""


class Method(ABC):
    """The least of a layer's method."""

    @abstractmethod
    def create_weights(self, layer, *weight_args, **extra_weight_attrs): ...

    @abstractmethod
    def apply(self, layer, *args, **kwargs): ...

    def process_weights_after_loading(self, layer): ...


class Unquantized(Method):
    def create_weights(self, layer, *weight_args, **extra_weight_attrs):
        layer.weight = nn.Parameter(torch.randn(7, 24))

    def apply(self, layer, x, bias=None):
        raise AssertionError("replaced")


class Config(ABC):
    """The least of a quantization's configuration."""

    def __init__(self):
        self.packed_modules_mapping = {}

    @abstractmethod
    def get_name(self): ...

    @abstractmethod
    def get_supported_act_dtypes(self): ...

    @classmethod
    @abstractmethod
    def get_min_capability(cls): ...

    @staticmethod
    @abstractmethod
    def get_config_filenames(): ...

    @classmethod
    @abstractmethod
    def from_config(cls, config): ...

    @abstractmethod
    def get_quant_method(self, layer, prefix): ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch):
    """Install the stand-in."""
    REGISTERED.clear()
    vllm._register.cache_clear()
    parts = {
        "layernorm": {"RMSNorm": RMSNorm, "GemmaRMSNorm": GemmaRMSNorm},
        "activation": {"SiluAndMul": SiluAndMul},
        "linear": {"LinearBase": LinearBase, "UnquantizedLinearMethod": Unquantized},
        "quantization": {
            "register_quantization_config": lambda name: lambda c: REGISTERED.update({name: c})
        },
        "quantization.base_config": {"QuantizationConfig": Config},
    }
    root = "vllm.model_executor.layers"
    for name in ("vllm", "vllm.model_executor", root):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, members in parts.items():
        module = ModuleType(f"{root}.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        setattr(sys.modules[root], name, module)


@pytest.mark.usefixtures("engine")
def test_nothing_is_registered_unless_a_platform_is_named(monkeypatch) -> None:
    monkeypatch.delenv(vllm.VARIABLE, raising=False)
    vllm.register()
    assert REGISTERED == {}
    monkeypatch.setenv(vllm.VARIABLE, "cpu")
    vllm.register()
    vllm.register()  # as an engine that loads its plugins twice in a process
    assert set(REGISTERED) == {"RMSNorm", "GemmaRMSNorm", "SiluAndMul", "hotshoe"}


@pytest.mark.parametrize("base", [RMSNorm, GemmaRMSNorm, SiluAndMul])
def test_methods_take_what_the_engine_gives(operations, base) -> None:
    """Each that a kind of device may call; its own on plain tensors stays, for compiled models."""
    make = vllm.activation_class if base is SiluAndMul else vllm.norm_class
    offset = () if base is SiluAndMul else (base.offset,)
    made = make(base, *offset, operations)
    wanted = list(inspect.signature(base.forward_native).parameters)
    kinds = [name for name in dir(made) if name.startswith("forward_")]
    assert "forward_oot" in kinds
    for name in kinds:
        assert list(inspect.signature(getattr(made, name)).parameters) == wanted
    assert made.forward_native is base.forward_native


@torch.inference_mode()
@pytest.mark.parametrize("base", [RMSNorm, GemmaRMSNorm])
def test_norms_compute_what_the_engine_does(operations, base) -> None:
    made = vllm.norm_class(base, base.offset, operations)(24)
    x, residual = torch.randn(2, 2, 5, 24)
    for forward in (made.forward_oot, made.forward_some_device):
        assert torch.allclose(forward(x.clone()), made.forward_native(x), atol=1e-5)
        got = forward(x.clone(), residual.clone())
        for one, want in zip(got, made.forward_native(x, residual), strict=True):
            assert torch.allclose(one, want, atol=1e-5)
    made.variance_size_override = 8  # then the engine's own computes
    assert torch.equal(made.forward_oot(x), made.forward_native(x))


@torch.inference_mode()
def test_the_activation_computes_what_the_engine_does(operations) -> None:
    made = vllm.activation_class(SiluAndMul, operations)()
    x = torch.randn(3, 5, 24)
    assert torch.allclose(made.forward_oot(x), made.forward_native(x), atol=1e-5)


@torch.inference_mode()
@pytest.mark.usefixtures("engine")
def test_linear_layers_are_a_quantization_of_nothing(operations) -> None:
    vllm.register_linear(operations)
    config = REGISTERED["hotshoe"].from_config({})
    assert (config.get_name(), config.get_min_capability()) == ("hotshoe", 0)
    assert torch.float32 in config.get_supported_act_dtypes()
    assert config.get_config_filenames() == []
    assert config.get_quant_method(nn.Linear(2, 2), "any") is None
    layer = LinearBase()
    layer.weight = nn.Parameter(torch.randn(7, 24))
    method = config.get_quant_method(layer, "any")
    method.process_weights_after_loading(layer)
    x, bias = torch.randn(2, 3, 24), torch.randn(7)
    assert torch.allclose(method.apply(layer, x), F.linear(x, layer.weight), atol=1e-5)
    assert torch.allclose(method.apply(layer, x, bias), F.linear(x, layer.weight, bias), atol=1e-5)
