"""Host SGLang: norms, the gated activation and linear layers of its models on candidates.

That engine loads `register` by entry point `sglang.srt.plugins`, in each of its processes. It does
nothing unless HOTSHOE_BRIDGE names a platform. Methods of that engine's fused operations are
replaced by its own registry of hooks; what computes plain tensors stays. Written for the versions
below, from that project's public sources.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from hotshoe_bridge import forwards
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.quantized import Host, config_class
from hotshoe_bridge.versions import require
from hotshoe_bridge.weights import NAME, methods

VARIABLE = "HOTSHOE_BRIDGE"
#: The first version of that engine that this is for, and the first that it is not for.
VERSIONS = ("0.5.23", "0.5.24")
#: Ways that a fused operation has for kinds of devices and libraries; one that fuses further
#: operations with it has another name.
WAYS = ("cuda", "hip", "npu", "xpu", "musa", "cpu", "aiter")


def register() -> None:
    """Register everything, if a platform is named; again, nothing, as that host may ask twice."""
    platform = os.environ.get(VARIABLE)  # noqa: TID251 - that host tells plugins nothing
    if platform:
        _register(platform)


@cache
def _register(platform: str) -> None:
    require("SGLang", ("sglang",), VERSIONS)
    operations = Operations(platform)
    register_layers(operations)
    register_linear(operations)


def register_layers(operations: Operations) -> None:
    """Let candidates compute norms and activations, on whatever kind of device."""
    from sglang.srt.layers import activation, layernorm
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    found = (
        (layernorm.RMSNorm, forwards.norm(0.0, operations)),
        (layernorm.GemmaRMSNorm, forwards.norm(1.0, operations)),
        (activation.SiluAndMul, forwards.silu_and_mul(operations)),
    )
    for kind, forward in found:
        for name in ways(kind):
            target = f"{kind.__module__}.{kind.__qualname__}.{name}"
            HookRegistry.register(target, forward, HookType.REPLACE)


def ways(kind: type) -> list[str]:
    """Return the methods by which an operation of that engine is computed, but for the plain one.

    Raises:
        RuntimeError: There is none, so that nothing could be replaced.
    """
    found = [f"forward_{way}" for way in WAYS if f"forward_{way}" in vars(kind)]
    if not found:
        raise RuntimeError(f"hotshoe-bridge finds no method to replace in {kind.__qualname__}")
    return found


def register_linear(operations: Operations) -> None:
    """Offer methods of quantization: that of nothing, of stored forms, and those at load."""
    from sglang.srt.arg_groups.choices import add_quantization_method_choices
    from sglang.srt.layers import quantization
    from sglang.srt.layers.linear import LinearBase
    from sglang.srt.layers.quantization.base_config import LinearMethodBase, QuantizationConfig
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    def experts(format: Any, layer: Any, prefix: str) -> None:
        """Leave them to that engine, which chooses experts before a method is called.

        Raises:
            ValueError: The checkpoint is quantized, which leaves that engine nothing to load.
        """
        if not format.online and "experts" in prefix.rpartition(".")[2]:
            raise ValueError(
                f"quantization {NAME}: {prefix} has experts, which are not bridged; use that "
                "engine's own method for this model"
            )

    host = Host(QuantizationConfig, LinearBase, UnquantizedLinearMethod, LinearMethodBase, experts)
    names = methods(operations)
    for name, asked in names.items():
        made: Any = config_class(host, name, asked, operations)
        for known in (quantization.QUANTIZATION_METHODS, quantization.CPU_QUANTIZATION_METHODS):
            known[name] = made
    add_quantization_method_choices(list(names))
