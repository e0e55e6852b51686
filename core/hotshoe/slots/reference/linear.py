"""Reference of slot `linear`: unquantised, and int8 with dynamic per-token activations.

Weights are kept as one row-major matrix. Other quantised formats are dequantised by their own
plugin before they reach a slot, or refused where the quantisation method is chosen.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.specs import LinearSpec

INT8_MAX = 127.0


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._device = facts.device
        self._weight = torch.empty(0)
        self._scale: Tensor | None = None
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self._spec
        weight = torch.cat(list(tensors["weight"])).to(self._device)
        if spec.weight is not None:
            weight, self._scale = quantize_rows(weight)
        else:
            weight = weight.to(torch_dtype(spec.dtype))
        self._weight = weight
        if spec.bias:
            self._bias = torch.cat(list(tensors["bias"])).to(self._device, torch_dtype(spec.dtype))

    def __call__(self, x: Tensor) -> Tensor:
        out_dtype = torch_dtype(self._spec.out_dtype or self._spec.dtype)
        if self._scale is None:
            return torch.nn.functional.linear(x, self._weight, self._bias).to(out_dtype)
        values, scale = quantize_rows(x)
        # int8 products of up to 2^17 terms are exact in float64, whatever the device offers.
        product = values.double() @ self._weight.double().T
        out = product.float() * scale[:, None] * self._scale
        return (out if self._bias is None else out + self._bias.float()).to(out_dtype)

    def nbytes(self) -> int:
        tensors = (self._weight, self._scale, self._bias)
        return sum(t.nbytes for t in tensors if t is not None)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row symmetrically to int8, nearest even.

    Returns:
        values [rows, columns] int8 and scale [rows] float32, with x close to values * scale.
    """
    wide = x.float()
    scale = wide.abs().amax(dim=-1) / INT8_MAX
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = (wide / safe[:, None]).round().clamp(-INT8_MAX, INT8_MAX)
    return values.to(torch.int8), safe
