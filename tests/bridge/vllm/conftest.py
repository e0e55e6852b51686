"""A stand-in for vLLM: the least of what the bridge meets, with the parameters of version 0.32.

Classes are abstract where that engine's are, so that a missing method fails here as it does there.
"""

import sys
from abc import ABC, abstractmethod
from enum import Enum
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from tests.bridge.conftest import stand_in
from torch import nn
from torch.nn import functional as F

from hotshoe_bridge import versions
from hotshoe_bridge import vllm as bridged

LAYERS = "vllm.model_executor.layers"
ATTENTION = "vllm.v1.attention"
OURS = "hotshoe_bridge.vllm."


class StandIn(nn.Module):
    """The least of `CustomOp`: classes by the name of the one they stand for."""

    registered: dict[str, type]

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        assert (name or cls.__name__) not in StandIn.registered, "Duplicate op name"
        StandIn.registered[name or cls.__name__] = _decorated_op_cls
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
    @staticmethod
    def forward_native(x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def forward_some_device(self, x):
        raise AssertionError("replaced")


class LinearBase(nn.Module):
    """A layer with a weight."""


class Method(ABC):
    @abstractmethod
    def create_weights(self, layer, *weight_args, **extra_weight_attrs): ...

    @abstractmethod
    def apply(self, layer, *args, **kwargs): ...

    def process_weights_after_loading(self, layer): ...


class Unquantized(Method):
    def create_weights(self, layer, inputs, parts, whole, outputs, dtype, **more):
        layer.weight = nn.Parameter(torch.randn(sum(parts), inputs, dtype=dtype))

    def apply(self, layer, x, bias=None):
        raise AssertionError("replaced")


class ExpertsMethod(Method):
    is_monolithic = False

    def __init__(self, moe):
        self.moe = moe

    @abstractmethod
    def get_fused_moe_quant_config(self, layer): ...

    def apply(self, layer, *args, **kwargs):
        raise AssertionError("not where a method is monolithic")


class UnquantizedExperts(ExpertsMethod):
    def create_weights(
        self, layer, num_experts, hidden_size, intermediate_size_per_partition, dtype
    ):
        rows = (1 + self.moe.activation.is_gated) * intermediate_size_per_partition
        inner = intermediate_size_per_partition
        layer.w13_weight = nn.Parameter(torch.randn(num_experts, rows, hidden_size, dtype=dtype))
        layer.w2_weight = nn.Parameter(torch.randn(num_experts, hidden_size, inner, dtype=dtype))


class RoutedExperts(nn.Module):
    """Experts; a test says what they are."""


class Config(ABC):
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


class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...

    @classmethod
    def validate_configuration(cls, head_size, dtype, kv_cache_dtype, use_mla, device_capability):
        wrong = dtype not in cls.supported_dtypes, kv_cache_dtype != "auto", use_mla
        said = "dtype not supported", "kv_cache_dtype not supported", "MLA not supported"
        return [why for why, is_so in zip(said, wrong, strict=True) if is_so]


class AttentionImpl(ABC):
    @abstractmethod
    def __init__(self, num_heads, head_size, scale): ...

    @abstractmethod
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output): ...


class AttentionMetadataBuilder(ABC):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER = "encoder"


class AttentionBackendEnum(Enum):
    CUSTOM = None
    OTHER = "vllm.other"


class Selector(NamedTuple):
    head_size: int
    dtype: torch.dtype
    kv_cache_dtype: str
    use_mla: bool


class CpuPlatform:
    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        return "its own"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, operations):
    """Install the stand-in; return what was registered, said and asked for."""
    StandIn.registered = {}
    seen = SimpleNamespace(registered=StandIn.registered, said=[], hybrid=False)
    seen.platforms = {"cpu": lambda: "CpuPlatform", "other": lambda: None}
    logger = SimpleNamespace(warning=lambda text, *values: seen.said.append(text % values))
    config = SimpleNamespace(model_config=seen)
    seen.is_hybrid = False

    def register_backend(backend, path):
        seen.registered[backend.name] = path

    modules = {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config": lambda: config},
        "vllm.logger": {"init_logger": lambda name: logger},
        "vllm.platforms": {"builtin_platform_plugins": seen.platforms},
        "vllm.utils.import_utils": {"resolve_obj_by_qualname": lambda name: globals()[name]},
        "vllm.v1.kv_cache_interface": {"KVCacheLayout": Enum("KVCacheLayout", ("LBHNC", "BLHNC"))},
        f"{ATTENTION}.backend": {
            "AttentionBackend": AttentionBackend,
            "AttentionImpl": AttentionImpl,
            "AttentionMetadataBuilder": AttentionMetadataBuilder,
            "AttentionType": AttentionType,
            "MultipleOf": lambda base: base,
        },
        f"{ATTENTION}.backends.registry": {
            "AttentionBackendEnum": AttentionBackendEnum,
            "register_backend": register_backend,
        },
        f"{LAYERS}.layernorm": {"RMSNorm": RMSNorm, "GemmaRMSNorm": GemmaRMSNorm},
        f"{LAYERS}.activation": {"SiluAndMul": SiluAndMul},
        f"{LAYERS}.linear": {
            "LinearBase": LinearBase,
            "LinearMethodBase": Method,
            "UnquantizedLinearMethod": Unquantized,
        },
        f"{LAYERS}.fused_moe": {
            "RoutedExperts": RoutedExperts,
            "UnquantizedFusedMoEMethod": UnquantizedExperts,
        },
        f"{LAYERS}.fused_moe.fused_moe_method_base": {"FusedMoEMethodBase": ExpertsMethod},
        f"{LAYERS}.quantization": {
            "register_quantization_config": lambda name: lambda c: seen.registered.update({name: c})
        },
        f"{LAYERS}.quantization.base_config": {"QuantizationConfig": Config},
    }
    stand_in(monkeypatch, modules)
    for name in ("attention", "platform"):  # they derive from that engine's classes
        monkeypatch.delitem(sys.modules, OURS + name, raising=False)
    monkeypatch.setattr(bridged, "operations", lambda: operations)
    monkeypatch.setattr(versions, "_version", lambda package: "0.32.1+cpu")
    monkeypatch.setenv(bridged.VARIABLE, "mine")
    bridged._register.cache_clear()
    yield seen
    for name in ("attention", "platform"):
        sys.modules.pop(OURS + name, None)
        vars(bridged).pop(name, None)
