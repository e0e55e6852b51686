"""Candidates of slot `linear`: bandwidth-bound products for few rows, the library for many.

The weight stays as the checkpoint has it, row-major. 8-bit weights per channel with activations
quantized per token, or by one scale that the checkpoint has, run through the same kernels, and
through a Triton product for many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, QuantSpec, Verdict, renewed
from hotshoe.slots.reference import linear as reference
from hotshoe_triton.device import DTYPES, KIB, OCP, arch_of, chaining, judge
from hotshoe_triton.quantize import FP8, INT8, QuantizeRows, format_of, quantize_weight
from hotshoe_triton.tuning import BUCKETS, LinearConfig, default

#: What the 8-bit kernels compute; weights are quantized while they load, or by the checkpoint.
FORMATS = ("int8", "fp8_e4m3")
Table = Mapping[tuple[int, int, int], LinearConfig]
Launch = Callable[[Tensor, Tensor, tuple[Tensor, Tensor] | None], None]


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and quantization."""
    plain = spec.weight is None and spec.activation is None
    stored = spec.weight.format if spec.weight else ""
    fixed = spec.activation == QuantSpec(stored, "tensor")
    known = spec.weight in (
        QuantSpec(stored, "channel", online=True),
        QuantSpec(stored, "channel"),
    ) and (fixed or spec.activation == QuantSpec(stored, "token", dynamic=True))
    refusals = {
        f"operands {spec.weight} and {spec.activation} are neither plain nor 8 bits by channel "
        "and, dynamically, by token or, as stored, by tensor": not plain
        and not (known and stored in FORMATS),
        f"results of type {spec.out_dtype} are not written": (spec.out_dtype or spec.dtype)
        not in DTYPES,
        f"rows of {spec.in_features} are not a multiple of 16": bool(spec.in_features % 16),
    }
    verdict = judge(facts, spec.dtype, refusals)
    if not verdict.accepted or plain:
        return verdict
    kind = format_of(stored, facts)
    if kind is None:
        return judge(facts, spec.dtype, {f"{facts.arch} does not multiply {stored}": True})
    # A stored scale is made for the format that it is stored with.
    other = fixed and kind not in (INT8, FP8[OCP])
    return judge(facts, spec.dtype, {f"{facts.arch} has no {OCP} that x has its scale for": other})


class Linear:
    """See `hotshoe.slots.LinearOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        table: Tuned configurations by (n, k, bucket); what is missing gets the default.
    """

    takes_quantized = True

    def __init__(self, spec: LinearSpec, facts: DeviceFacts, table: Table | None = None) -> None:
        from hotshoe_triton.kernels import linear

        self._kernels = linear
        self._spec, self._facts = spec, facts
        self._n, self._k = spec.out_features, spec.in_features
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._y_dtype: torch.dtype = getattr(torch, spec.out_dtype or spec.dtype)
        self._format = format_of(spec.weight.format, facts) if spec.weight else None
        self._quantize = QuantizeRows(self._k, self._format, self._facts) if self._format else None
        self._table = table or {}
        self._weight = torch.empty(0)
        self._scale: Tensor | None = None
        self._x_scale: Tensor | None = None
        self._bias: Tensor | None = None
        self._launches: list[Launch] = []

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        device = self._facts.device
        parts = tensors["weight"]
        if self._format is None:
            if not self._weight.numel():
                shape = (self._n, self._k)
                self._weight = torch.empty(shape, dtype=self._dtype, device=device)
            torch.cat([part.to(device, self._dtype) for part in parts], out=self._weight)
        else:
            scales = tensors.get("weight_scale", [None] * len(parts))
            pairs = [self._eight_bits(*pair) for pair in zip(parts, scales, strict=True)]
            self._weight = renewed(self._weight, torch.cat([values for values, _ in pairs]))
            self._scale = renewed(self._scale, torch.cat([scale for _, scale in pairs]))
            if "input_scale" in tensors:
                scale = reference.common_scale(tensors["input_scale"]).reshape(1).to(device)
                self._x_scale = renewed(self._x_scale, scale)
        if self._spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(device, self._dtype)
            self._bias = renewed(self._bias, bias)
        if self._launches:  # recordings have their addresses
            return
        self._counters = torch.zeros(self._n, dtype=torch.int32, device=device)
        self._launches = [self._launch(self._config(bucket), bucket) for bucket in BUCKETS]

    def state(self) -> dict[str, Tensor]:
        if not self._weight.numel():
            return {}
        held = {
            "weight": self._weight,
            "weight_scale": self._scale,
            "input_scale": self._x_scale,
            "bias": self._bias,
        }
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def _eight_bits(self, part: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return rows of the weight in this device's 8-bit format, and their scales."""
        device, wanted = self._facts.device, self._format
        part = part.to(device)
        if scale is None:
            return quantize_weight(part, wanted)
        scale = scale.to(device, torch.float32).reshape(-1)
        if part.dtype != wanted.dtype:  # the same format with another bias of the exponent
            return quantize_weight(part.float() * scale[:, None], wanted)
        return part, scale

    def _config(self, bucket: int) -> LinearConfig:
        itemsize = self._weight.itemsize
        found = self._table.get((self._n, self._k, bucket))
        return found or default(bucket, self._n, self._k, itemsize, self._facts)

    def _launch(self, config: LinearConfig, bucket: int) -> Launch:
        """Return the launch of a bucket: (y, x, quantized x or None) -> None, y written."""
        if config.kernel == "library":
            return self._many
        grid = (-(-self._n // config.block_n), config.split_k)
        constants = {
            "K": self._k,
            "BIAS": self._bias is not None,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "SPLIT_K": config.split_k,
            "num_warps": config.warps,
        } | chaining(self._facts)
        weight, bias = self._weight, self._weight if self._bias is None else self._bias
        scale, counters, n, stride = self._scale, self._counters, self._n, self._weight.stride(0)
        rows = max(16, bucket)
        cells = config.split_k * grid[0] * config.block_n * rows if config.split_k > 1 else 0
        kind = torch.int32 if weight.dtype == torch.int8 else torch.float32

        if config.kernel == "gemv":
            gemv = self._kernels.gemv
            constants |= {"UNROLL": config.stages}

            def few(y: Tensor, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> None:
                partial = torch.empty(cells, dtype=kind, device=y.device) if cells else y
                gemv[grid](y, x, weight, bias, partial, counters, n, stride, **constants)

            return few

        skinny = self._kernels.skinny
        constants |= {"SCALED": scale is not None, "BLOCK_M": rows, "num_stages": config.stages}

        def some(y: Tensor, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> None:
            partial = torch.empty(cells, dtype=kind, device=y.device) if cells else y
            values, x_scale = (x, x) if quantized is None else quantized
            skinny[grid](
                y, values, weight, bias, weight if scale is None else scale, x_scale, partial,
                counters, x.size(0), n, values.stride(0), weight.stride(0), **constants,
            )  # fmt: skip

        return some

    def _many(self, y: Tensor, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> None:
        """Compute any number of rows."""
        if quantized is None:
            y.copy_(torch.nn.functional.linear(x, self._weight, self._bias))
            return
        values, x_scale = quantized
        arch = arch_of(self._facts)
        big = arch.shared_bytes > 150 * KIB
        block = (128, 128, 128) if big else (64, 64, 128)
        tiles = -(-x.size(0) // block[0]) * -(-self._n // block[1])
        self._kernels.scaled_gemm[(tiles,)](
            y, values, self._weight, self._weight if self._bias is None else self._bias,
            self._scale, x_scale, x.size(0), self._n, values.stride(0), self._weight.stride(0),
            K=self._k, BIAS=self._bias is not None, BLOCK_M=block[0], BLOCK_N=block[1],
            BLOCK_K=block[2], GROUP_M=8, num_warps=8 if big else 4, num_stages=3 if big else 2,
        )  # fmt: skip

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        if not isinstance(x, Tensor):
            return self.apply(x[0], x)
        return self.apply(x, None if self._quantize is None else self._quantize(x, self._x_scale))

    def apply(self, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> Tensor:
        """Multiply; `quantized` holds x's 8-bit values and scales where the weight has 8 bits."""
        rows = x.size(0)
        if quantized is None and rows > BUCKETS[-1] and self._y_dtype == self._dtype:
            return torch.nn.functional.linear(x, self._weight, self._bias)
        y = torch.empty((rows, self._n), dtype=self._y_dtype, device=x.device)
        if rows > BUCKETS[-1]:
            self._many(y, x, quantized)
        elif rows:
            self._launches[(rows - 1).bit_length()](y, x, quantized)
        return y

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())
