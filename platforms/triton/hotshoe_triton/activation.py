"""Candidate of slot `gated_activation`, and the same with a quantized result."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationOp, GatedActivationSpec, Verdict
from hotshoe_triton.device import chaining, judge, limited
from hotshoe_triton.quantize import Format, format_of, quantizes, row_block, row_launch

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
#: Of a program; a row with a scale has one program, which goes over a wider row in pieces.
BLOCK, MAX_BLOCK = 1024, 16384
#: Of a warp, where columns are written as they are, and where groups of them have scales.
PER_WARP, PER_WARP_OF_GROUPS = 256, 512
#: Of a thread with a row's 16 warps, so that two programs share a multiprocessor of NVIDIA's.
REGISTERS = 64


def supports(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge activation, element type and quantization."""
    known = quantizes(spec.quant, spec.size, facts)
    return judge(
        facts,
        spec.dtype,
        {
            f"activation {spec.activation} is unknown": spec.activation not in ACTIVATIONS,
            f"results are not quantized as {spec.quant}": not known,
        },
    )


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(
        self, spec: GatedActivationSpec, facts: DeviceFacts, limit: float = 0.0, group: int = 0
    ) -> None:
        from hotshoe_triton.kernels.activation import gated_activation

        self._kernel, self._size = gated_activation, spec.size
        block = min(2 * BLOCK if group else BLOCK, row_block(spec.size))
        self._chunks = -(-spec.size // block)
        self._constants = {
            "SIZE": spec.size,
            "ACTIVATION": spec.activation,
            "LIMIT": limit,
            "GROUP": group,
            "BLOCK": block,
            "num_warps": max(1, block // (PER_WARP_OF_GROUPS if group else PER_WARP)),
        } | chaining(facts)

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), self._size), dtype=x.dtype, device=x.device)
        self._launch(x, out, out)
        return out

    def _launch(self, x: Tensor, out: Tensor, scale: Tensor) -> None:
        if len(x):
            self._kernel[(len(x), self._chunks)](out, scale, x, x.stride(0), **self._constants)


class GatedActivationGroups(GatedActivation):
    """The activation with groups of its result quantized; bitwise that, then quantization."""

    def __init__(
        self, spec: GatedActivationSpec, format: Format, facts: DeviceFacts, group: int
    ) -> None:
        super().__init__(spec, facts, format.limit, group)
        self._format, self._group = format, group

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values [num_tokens, size] and scales; see `Format.empty`."""
        out, scale = self._format.empty((len(x), self._size), x.device, self._group)
        self._launch(x, out, scale)
        return out, scale


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
    stored = format_of(spec.quant.format, facts)
    if spec.quant.group_size:
        return GatedActivationGroups(spec, stored, facts, spec.quant.group_size)
    return GatedActivationQuant(spec, stored, facts)
