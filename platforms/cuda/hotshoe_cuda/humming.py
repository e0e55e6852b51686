"""Candidate `humming` of slot `linear`: integers of four or eight bits by group or row, by Humming.

It is known from its documentation, not from a run: it scores below the Triton kernels, so that it
is taken only when it is asked for (`--kernel linear=humming`). Its kernels are compiled when a
layer is first called. Source: `humming.layer.HummingLayer` of inclusionAI/humming.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, Verdict, accept_unless, renewed
from hotshoe.slots.reference import linear as reference
from hotshoe_triton import groups
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "humming-kernels", ("0.1",)
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")
DTYPES = ("bfloat16", "float16")
#: Rows and columns of a weight that a program of its takes at least.
ROWS, COLUMNS = 64, 128


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and sizes; the rest as for Triton's kernel of the same form."""
    same = groups.supports(spec, facts)
    if not same.accepted:
        return same
    assert spec.weight is not None
    missing = hindrance(DISTRIBUTION, RELEASES)
    ends = spec.out_features % ROWS or spec.in_features % COLUMNS
    refusals = {
        missing: bool(missing),
        f"Humming has no kernels for {facts.arch}, but for {', '.join(ARCHS)}": facts.arch
        not in ARCHS,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"results of type {spec.out_dtype} are not written": spec.out_dtype
        not in (None, spec.dtype),
        "zero points are left to Triton": not spec.weight.symmetric,
        "columns in another order are left to Triton": spec.weight.permuted,
        f"{spec.out_features} x {spec.in_features} are not multiples of {ROWS} x {COLUMNS}": bool(
            ends
        ),
    }
    return accept_unless(refusals, SCORE, "Humming; chosen by name alone while Triton serves too")


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        assert spec.weight is not None
        self._spec, self._quant, self._device = spec, spec.weight, facts.device
        self._bits = groups.BITS[spec.weight.format]
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._make: Any = importlib.import_module("humming.layer").HummingLayer
        self._pack: Any = importlib.import_module("humming.ops").pack_weight
        self._layer: Any = None
        self._held: dict[str, Tensor] = {}
        self._bias: Tensor | None = None

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        quant = self._quant
        parts = [part.to(self._device) for part in tensors["weight"]]
        if "weight_scale" in tensors:
            scales = [part.to(self._device) for part in tensors["weight_scale"]]
        else:
            made = [reference.quantize_weight(part, quant) for part in parts]
            parts, scales = [values for values, _ in made], [scale for _, scale in made]
        pairs = zip(scales, parts, strict=True)
        scale = torch.cat([reference.by_row(one, len(part), quant) for one, part in pairs])
        codes = torch.cat(parts).int() + (1 << (self._bits - 1))
        layer = self._make(
            shape_n=self._spec.out_features,
            shape_k=self._spec.in_features,
            weight_config={"dtype": f"uint{self._bits}", "group_size": quant.group_size or 0},
            torch_dtype=self._dtype,
        ).to(self._device)
        packed = self._pack(codes, self._bits)
        layer.load_from_tensors({"weight": packed, "weight_scale": scale.to(self._dtype)})
        layer.transform()
        for name, parameter in layer.named_parameters():
            self._held[name] = renewed(self._held.get(name), parameter.data)
            parameter.data = self._held[name]
        self._layer = self._layer or layer  # recordings keep the addresses of the first
        if self._spec.bias:
            bias = torch.cat(list(tensors["bias"])).to(self._device, self._dtype)
            self._bias = renewed(self._bias, bias)

    def state(self) -> dict[str, Tensor]:
        names = {"weight": "packed"}
        held = {names.get(name, name): tensor for name, tensor in self._held.items()}
        return held | ({} if self._bias is None else {"bias": self._bias})

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        assert isinstance(x, Tensor)
        if not len(x):
            return x.new_empty((0, self._spec.out_features))
        y: Tensor = self._layer(x.contiguous())
        return y if self._bias is None else y.add_(self._bias)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())
