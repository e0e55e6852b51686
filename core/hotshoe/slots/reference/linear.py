"""Reference of slot `linear`: plain weights, and quantized ones with or without quantized x.

Weights are kept as one row-major matrix, an element of storage for each of theirs, with scales by
tensor, row, group or block. `accepts` says which specifications that is. Quantized weights are
brought to plain numbers again in every call, which is slow.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import renewed
from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.reference import fp4
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.specs import LinearSpec

#: Storage type and largest magnitude by format. fp8 is the OCP type, whatever a device multiplies.
#: Source: OCP 8-bit Floating Point Specification 1.0.
FORMATS: dict[str, tuple[torch.dtype, float]] = {
    "int8": (torch.int8, 127.0),
    "int4": (torch.int8, 7.0),
    "fp8_e4m3": (torch.float8_e4m3fn, 448.0),
    "fp4_e2m1": (torch.int8, 12.0),  # twice the number, which is an integer
}


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    takes_quantized = True

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._device = facts.device
        self._weight = torch.empty(0)
        self._scale: Tensor | None = None
        self._zero: Tensor | None = None
        self._order: Tensor | None = None
        self._input_scale: Tensor | None = None
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self._spec
        weight = torch.cat(list(tensors["weight"])).to(self._device)
        if spec.weight is None:
            weight = weight.to(torch_dtype(spec.dtype))
        else:
            if "weight_scale" in tensors:
                scale = self._stacked(tensors, "weight_scale")
            else:
                weight, scale = quantize_weight(weight, spec.weight)
            self._scale = renewed(self._scale, scale)
            if not spec.weight.symmetric:
                self._zero = renewed(self._zero, self._stacked(tensors, "weight_zero_point"))
            self._load_inputs(tensors)
        self._weight = renewed(self._weight, weight)
        if spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(self._device, torch_dtype(spec.dtype))
            self._bias = renewed(self._bias, bias)

    def _load_inputs(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Take what is said of x: its order, and its scale where it is the same for all steps."""
        weight, activation = self._spec.weight, self._spec.activation
        if weight is not None and weight.permuted:
            self._order = renewed(self._order, tensors["weight_order"][0].to(self._device).long())
        if activation is not None and "input_scale" in tensors:
            scale = common_scale(tensors["input_scale"]).to(self._device)
            self._input_scale = renewed(self._input_scale, scale)

    def _stacked(self, tensors: Mapping[str, Sequence[Tensor]], name: str) -> Tensor:
        """Return scales or zero points of all parts, a row of them for each row of W.

        Returns:
            [out_features, columns] float32, with a column for the whole row, or for each group or
            block of it.
        """
        quant = self._spec.weight
        assert quant is not None
        pairs = zip(tensors[name], tensors["weight"], strict=True)
        found = [by_row(part, len(rows), quant) for part, rows in pairs]
        return torch.cat(found).to(self._device, torch.float32)

    def _dequantized(self) -> Tensor:
        """Return W [out_features, in_features] in float64."""
        assert self._scale is not None and self._spec.weight is not None
        zero = None if self._zero is None else self._zero.double()
        return dequantized(self._weight.double(), self._scale.double(), zero, self._spec.weight)

    def state(self) -> dict[str, Tensor]:
        if not self._weight.numel():
            return {}
        held = {
            "weight": self._weight,
            "weight_scale": self._scale,
            "weight_zero_point": self._zero,
            "weight_order": self._order,
            "input_scale": self._input_scale,
            "bias": self._bias,
        }
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def __call__(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        out_dtype = torch_dtype(self._spec.out_dtype or self._spec.dtype)
        if self._scale is None:
            assert isinstance(x, Tensor)
            return torch.nn.functional.linear(x, self._weight, self._bias).to(out_dtype)
        if self._order is not None:
            assert isinstance(x, Tensor)
            x = x[:, self._order]
        activation = self._spec.activation
        if activation is not None and activation.granularity == "token":
            values, scale = quantize_rows(x, activation.format) if isinstance(x, Tensor) else x
            out = self._product(values.double()) * scale[:, None]
        else:
            if not isinstance(x, Tensor):
                assert activation is not None and activation.group_size is not None
                x = widened(*x, activation.group_size)
            elif activation is not None:
                x = rounded(x, activation, self._input_scale)
            out = (x.double() @ self._dequantized().T).float()
        return (out if self._bias is None else out + self._bias.float()).to(out_dtype)

    def _product(self, values: Tensor) -> Tensor:
        """Multiply quantized rows of x, in float64, by W; float32, without the scales of x.

        Sums of up to 2^17 eight-bit products are exact in float64, whatever the device offers.
        """
        assert self._scale is not None
        if self._scale.shape[1] == 1 and self._zero is None:
            return (values @ self._weight.double().T).float() * self._scale[:, 0]
        return (values @ self._dequantized().T).float()

    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.state().values())


def by_row(part: Tensor, rows: int, quant: QuantSpec) -> Tensor:
    """Give each row of a matrix its scales or zero points.

    Args:
        part: As a checkpoint has them: of the whole, of each row, or of each block of rows.
        rows: Of the matrix.
        quant: The matrix's.

    Returns:
        [rows, columns], a column for the whole row, or for each group or block of it.
    """
    if quant.granularity == "block":
        assert quant.block_shape is not None
        part = part.repeat_interleave(min(quant.block_shape[0], rows), 0)[:rows]
    return part.reshape(len(part) if part.dim() else 1, -1).expand(rows, -1)


def dequantized(values: Tensor, scale: Tensor, zero: Tensor | None, quant: QuantSpec) -> Tensor:
    """Return a matrix as plain numbers; all operands have their type, scales are `by_row`'s."""
    size = values.shape[1]
    width = -(-size // scale.shape[1])
    if quant.granularity == "block" and quant.block_shape is not None:
        width = min(quant.block_shape[1], size)
    if zero is not None:
        values = values - zero.repeat_interleave(width, 1)[:, :size]
    return values * scale.repeat_interleave(width, 1)[:, :size]


def common_scale(scales: Sequence[Tensor]) -> Tensor:
    """Return the scale [] of x in a product by several matrices that each name one: the largest."""
    return torch.cat([scale.reshape(-1).float() for scale in scales]).amax()


def rounded(x: Tensor, quant: QuantSpec, scale: Tensor | None = None) -> Tensor:
    """Return what is left of x once it was quantized, as plain numbers.

    Args:
        x: [rows, columns].
        quant: How; symmetric.
        scale: [], where the checkpoint has one.

    Returns:
        [rows, columns] float32.
    """
    if quant.format == "fp4_e2m1":
        assert quant.group_size is not None
        return fp4.rounded(x, quant.group_size, scale)
    dtype, largest = FORMATS[quant.format]
    if quant.dynamic:
        if quant.group_size:
            return widened(*quantize_groups(x, quant.group_size, quant.format), quant.group_size)
        values, scales = quantize_rows(x, quant.format)
        return values.float() * scales[:, None]
    assert scale is not None
    values = x.float() / scale
    if not dtype.is_floating_point:
        values = values.round()
    kept = values.clamp(-largest, largest).to(dtype).float() * scale
    return torch.where(values.isnan(), values, kept)  # no integer is NaN


def plain_weight(spec: LinearSpec, tensors: Mapping[str, Sequence[Tensor]]) -> Tensor:
    """Return W [out_features, in_features] of what `LinearOp.load` takes, in the model's type.

    Columns are in the order of x, whatever their order was.
    """
    dtype, quant = torch_dtype(spec.dtype), spec.weight
    if quant is None:
        return torch.cat(list(tensors["weight"])).to(dtype)
    zeros, scales = tensors.get("weight_zero_point"), tensors.get("weight_scale")
    found = []
    for i, part in enumerate(tensors["weight"]):
        values, scale = quantize_weight(part, quant) if scales is None else (part, scales[i])
        wide = scale if scales is None else by_row(scale, len(part), quant).float()
        zero = None if zeros is None else by_row(zeros[i], len(part), quant).float()
        found.append(dequantized(values.float(), wide, zero, quant).to(dtype))
    weight = torch.cat(found)
    if quant.permuted:
        weight = weight[:, tensors["weight_order"][0].long().argsort()]
    return weight


def quantized(x: Tensor, quant: QuantSpec | None) -> Tensor | tuple[Tensor, Tensor]:
    """Return x as a specification wants it: plain, or values and scales by token or group."""
    if quant is None:
        return x
    if quant.group_size:
        return quantize_groups(x, quant.group_size, quant.format)
    return quantize_rows(x, quant.format)


def quantize_groups(x: Tensor, size: int, format: str) -> tuple[Tensor, Tensor]:
    """Quantize each group of columns as `quantize_rows` does a row; the last may be shorter.

    Returns:
        values [rows, columns] of the format's type and scales [rows, groups] float32.
    """
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, -columns % size))
    values, scales = quantize_rows(padded.reshape(-1, size), format)
    return values.view(padded.shape)[:, :columns], scales.view(rows, padded.shape[1] // size)


def widened(values: Tensor, scales: Tensor, size: int) -> Tensor:
    """Return as float32 [rows, columns] what `quantize_groups` gave."""
    return values.float() * scales.repeat_interleave(size, 1)[:, : values.shape[1]]


def quantize_weight(weight: Tensor, quant: QuantSpec) -> tuple[Tensor, Tensor]:
    """Quantize a matrix symmetrically, to the nearest value, with scales as a format wants them.

    Returns:
        values [rows, columns], and scale float32 [rows, 1] or [rows, groups or blocks of columns].
    """
    rows, columns = weight.shape
    height, width = {
        "tensor": (rows, columns),
        "channel": (1, columns),
        "group": (1, quant.group_size or columns),
        "block": quant.block_shape or (rows, columns),
    }[quant.granularity]
    wide = weight.float()
    padded = torch.nn.functional.pad(wide.abs(), (0, -columns % width, 0, -rows % height))
    tiles = padded.view(-(-rows // height), height, -(-columns // width), width)
    largest = tiles.amax((1, 3)).repeat_interleave(height, 0)[:rows]
    dtype, limit = FORMATS[quant.format]
    scale = largest / limit
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    values = wide / scale.repeat_interleave(width, 1)[:, :columns]
    if not dtype.is_floating_point:
        values = values.round()
    return values.clamp(-limit, limit).to(dtype), scale


def quantize_rows(x: Tensor, format: str = "int8") -> tuple[Tensor, Tensor]:
    """Quantize each row symmetrically, to the nearest value.

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
