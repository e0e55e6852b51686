"""Candidate `onednn` of slot `linear`: oneDNN, through PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, Verdict, accept_unless, renewed

SCORE = 60
DTYPES = ("bfloat16", "float16", "float32")


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge operands and types."""
    results = spec.out_dtype or spec.dtype
    refusals = {
        f"operands {spec.weight} and {spec.activation} are not plain": spec.weight is not None
        or spec.activation is not None,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"results of type {results} are not written": results not in DTYPES,
    }
    return accept_unless(refusals, SCORE, "oneDNN through PyTorch")


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec, self._device = spec, facts.device
        self._dtype = getattr(torch, spec.dtype)
        self._out_dtype = getattr(torch, spec.out_dtype or spec.dtype)
        self._weight = torch.empty(0)
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self._spec
        shape = (spec.out_features, spec.in_features)
        if not self._weight.numel():
            self._weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        parts = [part.to(self._device, self._dtype) for part in tensors["weight"]]
        torch.cat(parts, out=self._weight)
        if spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(self._device, self._dtype)
            self._bias = renewed(self._bias, bias)

    def state(self) -> dict[str, Tensor]:
        if not self._weight.numel():
            return {}
        return {"weight": self._weight} | ({} if self._bias is None else {"bias": self._bias})

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        assert isinstance(x, Tensor)
        return torch.nn.functional.linear(x, self._weight, self._bias).to(self._out_dtype)

    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)
