"""Mixtures of experts of vLLM: its routing and its experts as one operation of slot `moe`.

That engine hands over the router's logits where a method says that it is monolithic. A layer that
the slot does not describe stays that engine's own, which the log says with the reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.layers import Storage, WeightFormat
from hotshoe.slots import LinearSpec, MoeSpec, RouterSpec
from hotshoe_bridge.operations import DTYPES, Operations
from hotshoe_bridge.weights import NAME

#: Activations by that engine's names: the slot's, and whether gates stand beside.
ACTIVATIONS = {
    "silu": ("silu", True),
    "gelu": ("gelu", True),
    "gelu_tanh": ("gelu_tanh", True),
    "silu_no_mul": ("silu", False),
    "gelu_no_mul": ("gelu", False),
    "gelu_tanh_no_mul": ("gelu_tanh", False),
    "relu2_no_mul": ("relu2", False),
}
#: What a layer may have in that engine only as given, to be what the slot describes.
PLAIN = {
    "custom_routing_function": None,
    "apply_router_weight_on_input": False,
    "swiglu_limit": None,
    "swiglu_alpha": None,
    "swiglu_beta": None,
    "is_fused_checkpoint_transposed": False,
}
SCORINGS = ("softmax", "sigmoid")


def spec_of(layer: Any, dtype: torch.dtype) -> MoeSpec:
    """Read the specification of a layer of experts, of plain numbers.

    Raises:
        ValueError: The slot does not describe such a layer.
    """
    moe = layer.moe_config
    for name, plain in PLAIN.items():
        if getattr(layer, name, plain) != plain:
            raise ValueError(f"its {name} is {getattr(layer, name)!r}")
    if not moe.num_experts == moe.num_local_experts == moe.num_logical_experts:
        raise ValueError("experts are divided among ranks, or have copies")
    if moe.moe_parallel_config.dp_size > 1:
        raise ValueError("requests are divided among ranks")
    activation = ACTIVATIONS.get(moe.activation.value)
    if activation is None:
        raise ValueError(f"its activation is {moe.activation.value}")
    if layer.scoring_func not in SCORINGS or getattr(moe, "has_hash_routing", False):
        raise ValueError(f"its scores are {layer.scoring_func}")
    corrected = layer.e_score_correction_bias is not None
    grouped = layer.use_grouped_topk
    router = RouterSpec(
        scoring=layer.scoring_func,
        renormalize=layer.renormalize,
        scale=layer.routed_scaling_factor or 1.0,
        correction=corrected,
        groups=layer.num_expert_group if grouped else 1,
        groups_kept=layer.topk_group if grouped else 1,
        group_score="top2" if corrected and grouped else "max",
    )
    name, gated = activation
    inner, kind = moe.intermediate_size_per_partition, DTYPES[dtype]
    gate_up = LinearSpec(moe.hidden_dim, (1 + gated) * inner, kind, bias=moe.has_bias)
    down = LinearSpec(inner, moe.hidden_dim, kind, bias=moe.has_bias)
    return MoeSpec(gate_up, down, moe.num_experts, moe.experts_per_token, name, router, gated=gated)


def experts_method(format: WeightFormat, layer: Any, prefix: str, operations: Operations) -> Any:
    """Return the method of a layer of experts; None, and a line in the log, for that engine's own.

    Raises:
        ValueError: The checkpoint is quantized, which leaves that engine nothing that could load.
    """
    from vllm.logger import init_logger
    from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

    if not format.online:
        raise ValueError(
            f"quantization {NAME}: {prefix} has experts, and those of quantized checkpoints are "
            "not bridged; use that engine's own method for this model"
        )
    try:
        spec = spec_of(layer, layer.params_dtype)
    except ValueError as error:
        logger = init_logger("hotshoe_bridge")
        logger.warning("hotshoe-bridge: %s stays vLLM's own: %s", prefix, error)
        return None
    spec = _stored(spec, format, prefix)

    class Method(FusedMoEMethodBase):  # type: ignore[misc]
        """Chooses experts and computes them in one operation."""

        is_monolithic = True

        def create_weights(self, layer: Any, *sizes: Any, **more: Any) -> None:
            """Make that engine's own parameters, which its loader knows."""
            UnquantizedFusedMoEMethod.create_weights(self, layer, *sizes, **more)

        def maybe_roundup_sizes(
            self, hidden: int, inner: int, dtype: torch.dtype, parallel: Any
        ) -> tuple[int, int]:
            """Candidates take any size."""
            return hidden, inner

        def get_fused_moe_quant_config(self, layer: Any) -> None:
            """Candidates know how they store weights."""

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.hotshoe = prepared(layer, spec, format, prefix, operations)

        def apply_monolithic(
            self, layer: Any, x: Tensor, router_logits: Tensor, input_ids: Tensor | None = None
        ) -> Tensor:
            correction = layer.e_score_correction_bias
            correction = None if correction is None else correction.float()
            y: Tensor = layer.hotshoe(x.contiguous(), router_logits.float(), correction)
            return y

    return Method(layer.moe_config)


def _stored(spec: MoeSpec, format: WeightFormat, prefix: str) -> MoeSpec:
    """Say how a format that quantizes at load has the matrices."""

    def of(part: LinearSpec, name: str) -> LinearSpec:
        shape = (part.out_features, part.in_features)
        stored: Storage | None = format.storage(f"{prefix}.0.{name}", shape)
        if stored is None:
            return part
        return replace(part, weight=stored.weight, activation=stored.activation)

    gate_up, down = of(spec.gate_up, "gate_up_proj"), of(spec.down, "down_proj")
    return replace(spec, gate_up=gate_up, down=down)


def prepared(
    layer: Any, spec: MoeSpec, format: WeightFormat, prefix: str, operations: Operations
) -> Any:
    """Build the operation of a layer whose weights are loaded: w13 has gates before ups."""
    op = operations.choose("moe", spec)
    loads = (("w13", "gate_up_proj", spec.gate_up, op.load_gate_up),)
    loads += (("w2", "down_proj", spec.down, op.load_down),)
    for expert in range(spec.num_experts):
        for held, name, part, load in loads:
            tensors = {"weight": [getattr(layer, f"{held}_weight").data[expert]]}
            if part.bias:
                tensors["bias"] = [getattr(layer, f"{held}_bias").data[expert]]
            if part.weight is not None:
                tensors = dict(format.canonical(f"{prefix}.{expert}.{name}", tensors))
            load(expert, tensors)
    return op
