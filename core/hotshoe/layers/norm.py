"""RMS norm layers behind slots `rms_norm` and `add_rms_norm`."""

from __future__ import annotations

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import AddNormOp, AddNormSpec, NormOp, NormSpec, Quantised, QuantSpec


class _NormWeight:
    """Holds one norm's weight on the device."""

    def __init__(self, ctx: BuildContext, name: str, size: int) -> None:
        self._place = (ctx.device, ctx.torch_dtype)
        self.weight: Tensor
        ctx.weights.expect(f"{name}.weight", (size,), self._take)

    def _take(self, tensor: Tensor) -> None:
        self.weight = tensor.to(*self._place, copy=True)


class RMSNorm(_NormWeight):
    """x / rms(x) * (offset + weight); quantised where the layer behind takes it."""

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        size: int,
        eps: float,
        weight_offset: float = 0.0,
        quant: QuantSpec | None = None,
    ) -> None:
        super().__init__(ctx, name, size)
        spec = ctx.fused("rms_norm", NormSpec(size, eps, ctx.dtype, weight_offset), quant)
        self._op: NormOp = ctx.selector.choose("rms_norm", spec)

    def __call__(self, x: Tensor) -> Tensor | Quantised:
        """Normalise [num_tokens, size]."""
        return self._op(x, self.weight)


class AddRMSNorm(_NormWeight):
    """residual += residual_scale * x; RMS norm of the sum, quantised as in `RMSNorm`."""

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        size: int,
        eps: float,
        weight_offset: float = 0.0,
        residual_scale: float = 1.0,
        quant: QuantSpec | None = None,
    ) -> None:
        super().__init__(ctx, name, size)
        plain = AddNormSpec(size, eps, ctx.dtype, weight_offset, residual_scale)
        spec = ctx.fused("add_rms_norm", plain, quant)
        self._op: AddNormOp = ctx.selector.choose("add_rms_norm", spec)

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor | Quantised, Tensor]:
        """Return (normed, new residual), both [num_tokens, size]."""
        return self._op(x, residual, self.weight)
