"""Host vLLM: norms, the gated activation and linear layers of its models on candidates.

Loaded by its entry point `vllm.general_plugins`, in every process of that engine. It does nothing
unless HOTSHOE_BRIDGE names a platform. Norms and activations are out-of-tree classes; linear layers
are served with `--quantization hotshoe`, which leaves weights as they are. That engine calls such
classes only where custom operations are enabled, which they are not while it compiles models.

Written from that project's public sources; not run with it here. Its tests stand in for it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import AddNormSpec, GatedActivationSpec, LinearSpec, NormSpec
from hotshoe_bridge.operations import DTYPES, Operations

VARIABLE = "HOTSHOE_BRIDGE"
NAME = "hotshoe"
#: A class dispatches to one method for each kind of device; this one is what results are held to.
NATIVE = "forward_native"


def register() -> None:
    """Register everything, if a platform is named; again, nothing, as that host may ask twice."""
    platform = os.environ.get(VARIABLE)  # noqa: TID251 - that host tells plugins nothing
    if platform:
        _register(platform)


@cache
def _register(platform: str) -> None:
    operations = Operations(platform)
    from vllm.model_executor.layers import activation, layernorm

    for base, offset in ((layernorm.RMSNorm, 0.0), (layernorm.GemmaRMSNorm, 1.0)):
        base.register_oot(_decorated_op_cls=norm_class(base, offset, operations))
    gated = activation.SiluAndMul
    gated.register_oot(_decorated_op_cls=activation_class(gated, operations))
    register_linear(operations)


def norm_class(base: Any, offset: float, operations: Operations) -> type:
    """Make the out-of-tree class of a norm, with and without a residual."""

    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        weight = getattr(self, "weight", None)
        narrowed = getattr(self, "variance_size_override", None) is not None
        plain = getattr(self, "has_weight", True) and not narrowed
        if weight is None or not plain or weight.dtype != x.dtype:
            return getattr(self, NATIVE)(x, residual)
        size, eps, dtype = x.shape[-1], self.variance_epsilon, DTYPES[x.dtype]
        rows = x.reshape(-1, size).contiguous()
        if residual is None:
            op = operations.choose_once("rms_norm", NormSpec(size, eps, dtype, offset))
            return op(rows, weight).view(x.shape)
        op = operations.choose_once("add_rms_norm", AddNormSpec(size, eps, dtype, offset))
        y, total = op(rows, residual.reshape(-1, size).contiguous(), weight)
        return y.view(x.shape), total.view(x.shape)

    return _class(base, forward)


def activation_class(base: Any, operations: Operations) -> type:
    """Make the out-of-tree class of the gated activation with SiLU."""

    def forward(self: Any, x: Tensor) -> Tensor:
        size = x.shape[-1] // 2
        spec = GatedActivationSpec(size, "silu", DTYPES[x.dtype])
        op = operations.choose_once("gated_activation", spec)
        found: Tensor = op(x.reshape(-1, 2 * size).contiguous()).view(*x.shape[:-1], size)
        return found

    return _class(base, forward)


def _class(base: Any, forward: Any) -> type:
    """Derive a class that computes the same on every kind of device."""
    kinds = {name for name in dir(base) if name.startswith("forward_")} | {"forward_oot"}
    methods = dict.fromkeys(kinds - {NATIVE, "forward_static"}, forward)
    return type(f"Hotshoe{base.__name__}", (base,), methods)


def register_linear(operations: Operations) -> None:
    """Offer quantization method `hotshoe`, which quantizes nothing and multiplies by candidates."""
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    class Method(UnquantizedLinearMethod):  # type: ignore[misc]
        """Prepares the weight once it is loaded."""

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.hotshoe = prepared(layer.weight.data, operations)

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            y: Tensor = layer.hotshoe(x.reshape(-1, x.shape[-1]).contiguous())
            y = y.view(*x.shape[:-1], y.shape[-1])
            return y if bias is None else y + bias

    class Config(QuantizationConfig):  # type: ignore[misc]
        """Chooses the method of each layer."""

        @classmethod
        def get_name(cls) -> str:
            return NAME

        @classmethod
        def get_supported_act_dtypes(cls) -> list[torch.dtype]:
            return list(DTYPES)

        @classmethod
        def get_min_capability(cls) -> int:
            return 0

        @staticmethod
        def get_config_filenames() -> list[str]:
            return []

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            return cls()

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            return Method() if isinstance(layer, LinearBase) else None

    register_quantization_config(NAME)(Config)


def prepared(weight: Tensor, operations: Operations) -> Any:
    """Return the product by a weight [outputs, inputs]."""
    rows, columns = weight.shape
    op = operations.choose("linear", LinearSpec(columns, rows, DTYPES[weight.dtype]))
    op.load({"weight": [weight]})
    return op
