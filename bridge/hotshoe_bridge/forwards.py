"""What stands for the `forward` of an engine's norms and activations, as methods of its classes.

Engines call them with rows of any leading dimensions, and norms with a residual to add first. Where
a module is of a kind that no slot computes, its own plain forward does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from hotshoe.slots import AddNormSpec, GatedActivationSpec, NormSpec
from hotshoe_bridge.operations import DTYPES, Operations

Method: TypeAlias = Callable[..., Any]
#: Engines call so the forward of plain tensors, which others are held to.
NATIVE = "forward_native"
#: Attributes of norms that say, where they have another value, that it is no norm of a whole row.
PLAIN = {
    "has_weight": True,
    "pass_weight": True,
    "pass_weight_add": True,
    "variance_size_override": None,
    "cast_x_before_out_mul": False,
    "fp32_residual": False,
    "override_orig_dtype": None,
    "x_pad_to_multiple": 0,
    "_quant_linear": None,
}


def norm(offset: float, operations: Operations) -> Method:
    """Return the forward of a norm, with and without a residual."""

    def forward(
        self: Any, x: Tensor, residual: Tensor | None = None, *further: Any, **more: Any
    ) -> Any:
        weight = getattr(self, "weight", None)
        plain = all(getattr(self, name, value) == value for name, value in PLAIN.items())
        known = plain and weight is not None and weight.dtype == x.dtype and x.dtype in DTYPES
        if not known or any(one is not None for one in (*further, *more.values())):
            return getattr(self, NATIVE)(x, residual, *further, **more)
        size, eps, dtype = x.shape[-1], self.variance_epsilon, DTYPES[x.dtype]
        rows = x.reshape(-1, size).contiguous()
        if residual is None:
            op = operations.choose_once("rms_norm", NormSpec(size, eps, dtype, offset))
            return op(rows, weight).view(x.shape)
        op = operations.choose_once("add_rms_norm", AddNormSpec(size, eps, dtype, offset))
        y, total = op(rows, residual.reshape(-1, size).contiguous(), weight)
        return y.view(x.shape), total.view(x.shape)

    return forward


def silu_and_mul(operations: Operations) -> Method:
    """Return the forward of the gated activation with SiLU."""

    def forward(self: Any, x: Tensor) -> Tensor:
        size = x.shape[-1] // 2
        spec = GatedActivationSpec(size, "silu", DTYPES[x.dtype])
        op = operations.choose_once("gated_activation", spec)
        found: Tensor = op(x.reshape(-1, 2 * size).contiguous()).view(*x.shape[:-1], size)
        return found

    return forward
