"""Candidate `native` of slot `linear`: matrix products over weights packed once.

bfloat16 and float32 as they are, and int8 weights per channel with activations quantised per
token inside the kernel. Weights are packed part by part, so that no second copy is ever whole.
"""

from collections.abc import Mapping, Sequence

import torch
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec, Verdict
from hotshoe.slots.reference.dtypes import torch_dtype

INT8_CODE = 3
#: What the int8 kernel computes, whatever the weight's origin.
INT8_WEIGHT = QuantSpec("int8", "channel", online=True)
INT8_ACTIVATION = QuantSpec("int8", "token", dynamic=True)
PACKED = ("float32", "bfloat16")


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and quantisation."""
    quantised = (spec.weight, spec.activation)
    return judge(
        facts,
        spec.dtype,
        {
            f"weights of type {spec.dtype} are not packed": spec.weight is None
            and spec.dtype not in PACKED,
            f"operands {quantised} are not online int8 by channel and token": quantised
            not in ((None, None), (INT8_WEIGHT, INT8_ACTIVATION)),
        },
    )


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        self._native = kernels(facts)
        self._kernel = self._native.linear
        self._n, self._k = spec.out_features, spec.in_features
        self._code = DTYPE_CODES[spec.dtype] if spec.weight is None else INT8_CODE
        self._x_code = DTYPE_CODES[spec.dtype]
        self._y_dtype = torch_dtype(spec.out_dtype or spec.dtype)
        self._y_code = DTYPE_CODES[spec.out_dtype or spec.dtype]
        self._packed = torch.empty(0, dtype=torch.uint8)
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        size = self._native.linear_packed_nbytes(self._code, self._n, self._k)
        self._packed = torch.empty(size, dtype=torch.uint8)
        row = 0
        for part in tensors["weight"]:
            self._pack(row, part)
            row += part.shape[0]
        self._address = self._packed.data_ptr()
        if "bias" in tensors:
            self._bias = torch.cat([part.float() for part in tensors["bias"]])
        self._bias_address = 0 if self._bias is None else self._bias.data_ptr()

    def _pack(self, row: int, part: Tensor) -> None:
        if self._code != INT8_CODE and part.dtype != torch_dtype_of(self._code):
            part = part.to(torch_dtype_of(self._code))
        part = part if part.stride(1) == 1 else part.contiguous()
        source = SOURCE_CODES[part.dtype]
        self._native.linear_pack_rows(
            self._code,
            self._packed.data_ptr(),
            self._n,
            self._k,
            row,
            part.shape[0],
            source,
            part.data_ptr(),
            part.stride(0),
        )

    def __call__(self, x: Tensor) -> Tensor:
        m = x.size(0)
        y = torch.empty((m, self._n), dtype=self._y_dtype)
        self._kernel(
            self._code,
            self._address,
            self._n,
            self._k,
            m,
            self._x_code,
            x.data_ptr(),
            x.stride(0),
            self._bias_address,
            self._y_code,
            y.data_ptr(),
            self._n,
        )
        return y

    def nbytes(self) -> int:
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)


SOURCE_CODES = {torch_dtype(name): code for name, code in DTYPE_CODES.items()}


def torch_dtype_of(code: int) -> torch.dtype:
    """Return the element type of a kernel's code."""
    return next(dtype for dtype, c in SOURCE_CODES.items() if c == code)
