"""Candidates of slot `linear`: cuBLAS for large batches, a streaming Triton kernel for small ones.

`cublas` and `cublas_fp8` keep the weight [out_features, in_features] as the checkpoint has it. A
batch of few tokens reads the whole weight for little arithmetic; there the streaming kernels of
`hotshoe_triton`, configured by `tuned/`, come closer to the memory's speed than cuBLAS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict, accept, refuse
from hotshoe.slots.reference.dtypes import torch_dtype

SCORE = 60
DTYPES = ("float32", "bfloat16", "float16")


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types."""
    if spec.weight is not None or spec.activation is not None:
        return refuse(f"operands {spec.weight} and {spec.activation} are quantised")
    if spec.dtype not in DTYPES or (spec.out_dtype or spec.dtype) not in DTYPES:
        return refuse(f"types {spec.dtype} to {spec.out_dtype} are not multiplied")
    return accept(SCORE, "cuBLAS")


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._place = (facts.device, torch_dtype(spec.dtype))
        self._out_dtype = torch_dtype(spec.out_dtype or spec.dtype)
        self._weight: Tensor
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self._spec
        self._weight = stacked(tensors["weight"], spec.in_features, *self._place)
        self._transposed = self._weight.t()
        if spec.bias:
            device, dtype = self._place
            self._bias = torch.cat([part.to(device, dtype) for part in tensors["bias"]])

    def __call__(self, x: Tensor) -> Tensor:
        if self._out_dtype is x.dtype:
            return torch.nn.functional.linear(x, self._weight, self._bias)
        out = torch.mm(x, self._transposed, out_dtype=self._out_dtype)
        return out if self._bias is None else out.add_(self._bias)

    def nbytes(self) -> int:
        return self._weight.nbytes + (self._bias.nbytes if self._bias is not None else 0)


def stacked(parts: Sequence[Tensor], in_features: int, device: str, dtype: torch.dtype) -> Tensor:
    """Stack row parts on the device; a single part that is there already is kept as it is."""
    if len(parts) == 1:
        return parts[0].to(device, dtype)
    out = torch.empty((sum(len(p) for p in parts), in_features), dtype=dtype, device=device)
    row = 0
    for part in parts:
        out[row : row + len(part)].copy_(part)
        row += len(part)
    return out
