"""Methods of quantization of vLLM: what of `hotshoe_bridge.quantized` is that engine's."""

from __future__ import annotations

from typing import Any

from hotshoe.layers import WeightFormat
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.quantized import Host, config_class
from hotshoe_bridge.weights import methods


def register(operations: Operations) -> None:
    """Offer the methods."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import (
        LinearBase,
        LinearMethodBase,
        UnquantizedLinearMethod,
    )
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    def experts(format: WeightFormat, layer: Any, prefix: str) -> Any:
        if not isinstance(layer, RoutedExperts):
            return None
        from hotshoe_bridge.vllm.experts import experts_method

        return experts_method(format, layer, prefix, operations)

    host = Host(QuantizationConfig, LinearBase, UnquantizedLinearMethod, LinearMethodBase, experts)
    for name, asked in methods(operations).items():
        register_quantization_config(name)(config_class(host, name, asked, operations))
