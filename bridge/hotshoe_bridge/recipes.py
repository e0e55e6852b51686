"""Which modules of PyTorch a slot's operation can stand for, as data: a recipe for each.

A recipe reads a specification off a module and makes of the operation what the module's `forward`
is. Nobody believes it: `bridge` compares both on numbers before it replaces anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hotshoe.slots import GatedActivationSpec, GatedMlpSpec, LayerNormSpec, LinearSpec, NormSpec
from hotshoe_bridge.operations import DTYPES, Operations

Forward: TypeAlias = Callable[[Tensor], Tensor]
#: Classes of activations by the name that slots have for them.
ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}
_GATED = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kind of module is served.

    Attributes:
        slot: Whose operation serves it.
        name: The layer's name among Hugging Face `kernels`; "" where that library has none.
        reads: Returns the specification of a module, None for one of another kind.
        makes: Returns the forward of a module, of the operations.
        size: Returns how many numbers a row of the module's input has.
    """

    slot: str
    name: str
    reads: Callable[[nn.Module], Any]
    makes: Callable[[nn.Module, Any, Operations], Forward]
    size: Callable[[Any], int]


def dtype_of(module: nn.Module) -> str:
    """Return the one element type of a module's parameters.

    Raises:
        ValueError: They have several, or one that no slot computes in.
    """
    found = {parameter.dtype for parameter in module.parameters()}
    if len(found) != 1 or not found <= DTYPES.keys():
        raise ValueError(f"its parameters are {', '.join(map(str, found)) or 'none'}")
    return DTYPES[found.pop()]


def by_rows(call: Forward) -> Forward:
    """Return a forward over any leading dimensions, of a call over rows."""

    def forward(x: Tensor, *unknown: Any, **more: Any) -> Tensor:
        if unknown or more:
            raise TypeError("a bridged layer takes its input alone")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("bridged layers have no gradients; use torch.inference_mode()")
        rows = call(x.reshape(-1, x.shape[-1]).contiguous())
        return rows.view(*x.shape[:-1], rows.shape[-1])

    return forward


def _norm(offset: float) -> Callable[[nn.Module], NormSpec | None]:
    def reads(module: nn.Module) -> NormSpec | None:
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        named = {name for name, _ in module.named_parameters()}
        weight = getattr(module, "weight", None)
        known = "RMSNorm" in type(module).__name__ and named == {"weight"}
        if not known or not isinstance(eps, float) or weight is None or weight.dim() != 1:
            return None
        return NormSpec(len(weight), eps, dtype_of(module), weight_offset=offset)

    return reads


def make_norm(module: Any, spec: Any, operations: Operations) -> Forward:
    """Return the forward of a norm; the module keeps its weight."""
    op = operations.choose("rms_norm", spec)
    return by_rows(lambda x: op(x, module.weight))


def _layer_norm(module: nn.Module) -> LayerNormSpec | None:
    if type(module) is not nn.LayerNorm or module.weight is None or module.weight.dim() != 1:
        return None
    size, bias = len(module.weight), module.bias is not None
    return LayerNormSpec(size, module.eps, dtype_of(module), bias=bias)


def _make_layer_norm(module: Any, spec: Any, operations: Operations) -> Forward:
    op = operations.choose("layer_norm", spec)
    return by_rows(lambda x: op(x, module.weight, module.bias))


def linear_spec(module: nn.Module) -> LinearSpec | None:
    """Read the specification of a plain linear layer."""
    if type(module) is not nn.Linear:
        return None
    rows, columns = module.weight.shape
    return LinearSpec(columns, rows, dtype_of(module), bias=module.bias is not None)


def make_linear(module: Any, spec: Any, operations: Operations) -> Forward:
    """Return the forward of a linear layer, whose weight the operation prepares once."""
    op = operations.choose("linear", spec)
    op.load(_parts(module))
    return by_rows(op)


def _gated_mlp(module: nn.Module) -> GatedMlpSpec | None:
    parts = [getattr(module, name, None) for name in _GATED]
    activation = ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
    children = {name for name, _ in module.named_children()}
    if activation is None or children - {"act_fn"} != set(_GATED):
        return None
    specs = [linear_spec(part) for part in parts if isinstance(part, nn.Module)]
    if len(specs) != len(_GATED) or None in specs:
        return None
    gate, up, down = specs
    assert gate is not None and down is not None
    if gate != up:
        return None
    both = replace(gate, out_features=2 * gate.out_features)
    return GatedMlpSpec(both, down, activation)


def _make_gated_mlp(module: Any, spec: Any, operations: Operations) -> Forward:
    gate, up, down = (_parts(getattr(module, name)) for name in _GATED)
    both = {name: gate[name] + up[name] for name in gate}
    op = operations.choose("gated_mlp", spec)
    if op is not None:
        op.load_gate_up(both)
        op.load_down(down)
        return by_rows(op)
    first, second = (operations.choose("linear", s) for s in (spec.gate_up, spec.down))
    middle = GatedActivationSpec(spec.down.in_features, spec.activation, spec.dtype)
    opened = operations.choose("gated_activation", middle)
    first.load(both)
    second.load(down)
    return by_rows(lambda x: second(opened(first(x))))


def _parts(module: Any) -> dict[str, list[Tensor]]:
    bias = {} if module.bias is None else {"bias": [module.bias.data]}
    return {"weight": [module.weight.data], **bias}


#: In the order in which they are tried; a module is served by the first that computes the same.
RECIPES = (
    Recipe("gated_mlp", "", _gated_mlp, _make_gated_mlp, lambda spec: spec.gate_up.in_features),
    Recipe("linear", "Linear", linear_spec, make_linear, lambda spec: spec.in_features),
    Recipe("rms_norm", "RMSNorm", _norm(0.0), make_norm, lambda spec: spec.hidden_size),
    Recipe("rms_norm", "RMSNormZeroCentered", _norm(1.0), make_norm, lambda spec: spec.hidden_size),
    Recipe("layer_norm", "", _layer_norm, _make_layer_norm, lambda spec: spec.hidden_size),
)
