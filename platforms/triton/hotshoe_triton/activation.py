"""Candidate of slot `gated_activation`, and the same with a quantized result."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationOp, GatedActivationSpec, Verdict
from hotshoe_triton.device import chaining, judge, limited, next_power_of_2
from hotshoe_triton.quantize import Format, format_of, quantizes, row_launch

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
#: Of a program; a row that is quantized has one program, which goes over a wider row in pieces.
BLOCK, MAX_BLOCK = 1024, 16384
#: Of a thread with a row's 16 warps, so that two programs share a multiprocessor of NVIDIA's.
REGISTERS = 64


def supports(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge activation, element type and quantization."""
    return judge(
        facts,
        spec.dtype,
        {
            f"activation {spec.activation} is unknown": spec.activation not in ACTIVATIONS,
            f"results are not quantized as {spec.quant}": not quantizes(spec.quant, facts),
        },
    )


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(self, spec: GatedActivationSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.activation import gated_activation

        self._kernel, self._size = gated_activation, spec.size
        block = min(BLOCK, next_power_of_2(spec.size))
        self._chunks = -(-spec.size // block)
        self._constants = {
            "SIZE": spec.size,
            "ACTIVATION": spec.activation,
            "BLOCK": block,
            "num_warps": max(1, block // 256),
        } | chaining(facts)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        out = torch.empty((rows, self._size), dtype=x.dtype, device=x.device)
        if rows:
            self._kernel[(rows, self._chunks)](out, x, x.stride(0), **self._constants)
        return out


class GatedActivationQuant:
    """The activation with its result quantized by row; bitwise that followed by `QuantizeRows`."""

    def __init__(self, spec: GatedActivationSpec, format: Format, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.activation import gated_activation_quant

        self._kernel, self._size, self._format = gated_activation_quant, spec.size, format
        sizes = {"SIZE": spec.size, "ACTIVATION": spec.activation, "LIMIT": format.limit}
        launch = row_launch(min(spec.size, MAX_BLOCK)) | limited(REGISTERS, facts)
        self._constants = sizes | launch | chaining(facts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values [num_tokens, size] and scales [num_tokens] float32."""
        out, scale = self._format.empty((x.size(0), self._size), x.device)
        if len(x):
            self._kernel[(len(x),)](out, scale, x, x.stride(0), **self._constants)
        return out, scale


def build(spec: GatedActivationSpec, facts: DeviceFacts) -> GatedActivationOp:
    """Build the activation that a specification asks for."""
    if spec.quant is None:
        return GatedActivation(spec, facts)
    return GatedActivationQuant(spec, format_of(spec.quant.format, facts), facts)
