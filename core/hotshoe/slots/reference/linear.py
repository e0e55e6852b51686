"""Reference of slot `linear`: unquantised, and eight bits with dynamic per-token activations.

Weights are kept as one row-major matrix. Other quantised formats are dequantised by their own
plugin before they reach a slot, or refused where the quantisation method is chosen.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import renewed
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.specs import LinearSpec, QuantSpec

#: Storage type and largest magnitude by format. fp8 is the OCP type, whatever a device multiplies.
#: Source: OCP 8-bit Floating Point Specification 1.0.
FORMATS: dict[str, tuple[torch.dtype, float]] = {
    "int8": (torch.int8, 127.0),
    "fp8_e4m3": (torch.float8_e4m3fn, 448.0),
}


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    takes_quantised = True

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._device = facts.device
        self._weight = torch.empty(0)
        self._scale: Tensor | None = None
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self._spec
        weight = torch.cat(list(tensors["weight"])).to(self._device)
        if spec.weight is None:
            weight = weight.to(torch_dtype(spec.dtype))
        else:
            if "weight_scale" in tensors:
                parts = [part.reshape(-1) for part in tensors["weight_scale"]]
                scale = torch.cat(parts).to(self._device, torch.float32)
            else:
                weight, scale = quantize_rows(weight, spec.weight.format)
            self._scale = renewed(self._scale, scale)
        self._weight = renewed(self._weight, weight)
        if spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(self._device, torch_dtype(spec.dtype))
            self._bias = renewed(self._bias, bias)

    def state(self) -> dict[str, Tensor]:
        if not self._weight.numel():
            return {}
        held = {"weight": self._weight, "weight_scale": self._scale, "bias": self._bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def __call__(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        out_dtype = torch_dtype(self._spec.out_dtype or self._spec.dtype)
        if self._scale is None:
            assert isinstance(x, Tensor)
            return torch.nn.functional.linear(x, self._weight, self._bias).to(out_dtype)
        assert self._spec.weight is not None
        values, scale = quantize_rows(x, self._spec.weight.format) if isinstance(x, Tensor) else x
        # Sums of up to 2^17 eight-bit products are exact in float64, whatever the device offers.
        product = values.double() @ self._weight.double().T
        out = product.float() * scale[:, None] * self._scale
        return (out if self._bias is None else out + self._bias.float()).to(out_dtype)

    def nbytes(self) -> int:
        tensors = (self._weight, self._scale, self._bias)
        return sum(t.nbytes for t in tensors if t is not None)


def quantized(x: Tensor, quant: QuantSpec | None) -> Tensor | tuple[Tensor, Tensor]:
    """Return x as a specification wants it: plain, or values and scales by token."""
    return x if quant is None else quantize_rows(x, quant.format)


def quantize_rows(x: Tensor, format: str = "int8") -> tuple[Tensor, Tensor]:
    """Quantise each row symmetrically, to the nearest value.

    Returns:
        values [rows, columns] of the format's type and scale [rows] float32, with x close to
        values * scale. The scale of a row that holds NaN is NaN, as no integer is.
    """
    dtype, largest = FORMATS[format]
    wide = x.float()
    scale = wide.abs().amax(dim=-1) / largest
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    values = wide / safe[:, None]
    if not dtype.is_floating_point:
        values = values.round()
    return values.clamp(-largest, largest).to(dtype), safe
