"""Candidate `native` of slot `linear`: matrix products over weights packed once.

bfloat16 and float32 as they are, and int8 weights per channel with activations quantized per
token inside the kernel. Weights are packed part by part, so that no second copy is ever whole.
`hotshoe_cpu.mlp` uses the same kernel for gates and what they multiply.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec, Verdict, renewed
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels
from hotshoe_cpu.pages import BLOCKS
from hotshoe_native import MAX_INT8_K

PACKED = ("float32", "bfloat16")
NO_GATE = -1
CODES = {torch_dtype(name): code for name, code in DTYPE_CODES.items()} | {torch.int8: 3}
PACKED_TYPES = {code: dtype for dtype, code in CODES.items()}
#: What the int8 kernel computes; weights are quantized while they load, or by the checkpoint.
INT8_WEIGHTS = (QuantSpec("int8", "channel", online=True), QuantSpec("int8", "channel"))
INT8_ACTIVATION = QuantSpec("int8", "token", dynamic=True)


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and quantization."""
    plain = spec.weight is None and spec.activation is None
    int8 = spec.weight in INT8_WEIGHTS and spec.activation == INT8_ACTIVATION
    refusals = {
        f"operands {spec.weight} and {spec.activation} are neither plain nor int8 by channel "
        "and, dynamically, by token": not (plain or int8),
        f"{spec.in_features} inputs are more than the {MAX_INT8_K} whose int8 products fit "
        "32 bits": int8 and spec.in_features > MAX_INT8_K,
        f"weights of type {spec.dtype} are not packed, only {' and '.join(PACKED)}": plain
        and spec.dtype not in PACKED,
        f"results of type {spec.out_dtype} are not written": (spec.out_dtype or spec.dtype)
        not in DTYPE_CODES,
    }
    return judge(facts, spec.dtype, refusals)


class Linear:
    """See `hotshoe.slots.LinearOp`.

    Args:
        spec: What to compute.
        facts: The device.
        gate: Code of an activation: results are the first half of the columns, through it, times
            the second half. None for all columns as they are.
    """

    def __init__(self, spec: LinearSpec, facts: DeviceFacts, gate: int | None = None) -> None:
        self._native = kernels(facts)
        self._kernel = self._native.linear
        self._n, self._k = spec.out_features, spec.in_features
        self._gated, self._gate = gate is not None, NO_GATE if gate is None else gate
        self._columns = self._n // 2 if self._gated else self._n
        self._dtype = torch.int8 if spec.weight is not None else torch_dtype(spec.dtype)
        self._y_dtype = torch_dtype(spec.out_dtype or spec.dtype)
        self._x_code, self._y_code = CODES[torch_dtype(spec.dtype)], CODES[self._y_dtype]
        self._packed = torch.empty(0, dtype=torch.uint8)
        self._bias: Tensor | None = None
        self._weight: tuple[int, ...] = ()
        self._bias_address = 0

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        if not self._weight:
            self._allocate()
        pack(self._native, self._weight, tensors, self._gated)
        if "bias" in tensors:
            bias = torch.cat([part.float() for part in tensors["bias"]])
            self._bias = renewed(self._bias, bias)
            self._bias_address = self._bias.data_ptr()

    def _allocate(self) -> None:
        """Take memory for the packed weight, which stays where it is."""
        code = CODES[self._dtype]
        nbytes = self._native.linear_packed_nbytes(code, self._n, self._k, self._gated)
        self._packed = BLOCKS.take(self._native, nbytes)
        self._weight = (code, self._packed.data_ptr(), self._n, self._k)

    def state(self) -> dict[str, Tensor]:
        if not self._weight:
            return {}
        return {"packed": self._packed} | ({} if self._bias is None else {"bias": self._bias})

    def __call__(self, x: Tensor) -> Tensor:
        rows, columns = x.size(0), self._columns
        y = torch.empty(rows, columns, dtype=self._y_dtype)
        self._kernel(
            *self._weight,
            rows,
            self._x_code,
            x.data_ptr(),
            x.stride(0),
            self._bias_address,
            self._y_code,
            y.data_ptr(),
            columns,
            self._gate,
        )
        return y

    def nbytes(self) -> int:
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)


def pack(
    native: ModuleType,
    weight: tuple[int, ...],
    tensors: Mapping[str, Sequence[Tensor]],
    gated: bool,
) -> None:
    """Pack a matrix from row parts.

    Args:
        native: The kernels.
        weight: Code of the packed type, address, rows and columns.
        tensors: What `LinearOp.load` takes; scales [rows] come with int8 rows.
        gated: Gates and ups are packed side by side.
    """
    parts, row = tensors["weight"], 0
    scales = tensors.get("weight_scale", [None] * len(parts))
    for part, scale in zip(parts, scales, strict=True):
        if weight[0] != CODES[torch.int8]:
            part = part.to(PACKED_TYPES[weight[0]])
        if part.stride(1) != 1:
            part = part.contiguous()
        flat = None if scale is None else scale.float().reshape(-1).contiguous()
        place = (row, part.shape[0], CODES[part.dtype], part.data_ptr(), part.stride(0))
        native.linear_pack_rows(*weight, *place, 0 if flat is None else flat.data_ptr(), gated)
        row += part.shape[0]
