"""Candidate `fp4` of slot `moe`: experts and x in 4-bit floats, as `fp4` has linear layers.

x is quantized once for all experts, so that of NVFP4's scales of all x, of which each expert has
one, the largest counts. What an expert's first matrix gives is quantized likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe.slots.reference import linear as reference
from hotshoe_triton import fp4, moe
from hotshoe_triton.device import KIB, arch_of, judge, next_power_of_2
from hotshoe_triton.groups import stored_scale
from hotshoe_triton.moe import Plan, Tile


def supports(spec: MoeSpec, facts: DeviceFacts) -> Verdict:
    """Judge both matrices as `fp4` does, all else as for other forms."""
    known = accepts.supports(spec, facts)
    if not known.accepted:
        return known

    def judge_form(name: str, side: LinearSpec) -> dict[str, bool]:
        found = fp4.form_refusals(side, facts)
        return {f"{name}: {reason}": held for reason, held in found.items()}

    return judge(facts, spec.dtype, fp4.unscaled(facts) | moe.refusals(spec, judge_form))


def plan_for(tokens: int, spec: MoeSpec, facts: DeviceFacts) -> Plan:
    """Choose without measuring: units take 128 rows of a matrix."""
    expected = tokens * spec.top_k / moe.experts_read(tokens, spec)
    pairs = min(128, max(16, next_power_of_2(int(expected * moe.ROOM))))
    arch, warps = arch_of(facts), 8 if pairs > 64 else 4

    # Half a byte a number, and a byte for 16 of them.
    stage_bytes = (fp4.BLOCK_N + pairs) * (fp4.BLOCK_K // 2 + fp4.BLOCK_K // 16)
    fit = (arch.shared_bytes - 8 * KIB) // stage_bytes
    stages = max(2, min(4, fit)) if arch.backend == "cuda" else 2
    tile = Tile(pairs, fp4.BLOCK_N, fp4.BLOCK_K, warps, stages)
    return Plan(tile, tile)


class Matrices:
    """One matrix of every expert, and what quantizes x for it; see `kernels.fp4`.

    Args:
        spec: Of one expert, which `supports` accepts.
        experts: How many.
        facts: The device.
    """

    def __init__(self, spec: LinearSpec, experts: int, facts: DeviceFacts) -> None:
        assert spec.weight is not None and spec.weight.group_size is not None
        self._size, self._device = spec.weight.group_size, facts.device
        rows, columns = spec.out_features, spec.in_features
        self._rooms = {
            "packed": ((experts, rows, columns // 2), torch.uint8),
            "weight_scale": ((experts, rows, columns // self._size), fp4.SCALES[self._size]),
            "scale": ((experts, rows), torch.float32),
        }
        if self._size == 16:
            self._rooms["input_scale"] = (experts,), torch.float32
        if spec.bias:
            self._rooms["bias"] = (experts, rows), getattr(torch, spec.dtype)
        self._quantize = fp4.QuantizeGroups(columns, self._size, facts, experts)
        self._held: dict[str, Tensor] = {}

    def load(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Pack one expert's parts into their place."""
        if not self._held:  # an expert that has not come has no scale of x
            self._held = {
                name: torch.zeros(shape, dtype=dtype, device=self._device)
                for name, (shape, dtype) in self._rooms.items()
            }
        held, row = {name: tensor[expert] for name, tensor in self._held.items()}, 0
        for i, part in enumerate(tensors["weight"]):
            one = {name: parts[i].to(self._device) for name, parts in tensors.items()}
            whole = one.get("weight_global_scale", torch.ones(1)).to(self._device, torch.float32)
            rows = slice(row, row := row + len(part))
            held["packed"][rows] = fp4.packed(one["weight"])
            held["weight_scale"][rows] = stored_scale(one["weight_scale"], whole, self._size)
            held["scale"][rows] = whole.reshape(1)
            if "bias" in held:
                held["bias"][rows] = one["bias"].to(held["bias"].dtype)
        if "input_scale" in held:
            held["input_scale"].copy_(reference.common_scale(tensors["input_scale"]))

    def operands(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x and the matrices as kernels take them; some tensor for what there is not."""
        held, whole = self._held, self._held.get("input_scale")
        values, scale = self._quantize(x, whole)
        weights = held["packed"], held["weight_scale"], held["scale"]
        bias = held.get("bias", held["scale"])
        return values, scale, scale if whole is None else whole, *weights, bias

    def constants(self) -> dict[str, Any]:
        """Return the kernel's constants of the form."""
        return dict(self._quantize.constants)

    def state(self) -> dict[str, Tensor]:
        return dict(self._held)


class Moe(moe.Moe):
    """See `hotshoe.slots.MoeOp`."""

    def _form(self) -> tuple[Any, Any]:
        from hotshoe_triton.kernels.fp4 import grouped_fp4

        return grouped_fp4, Matrices

    def _programs(self, tile: Tile, rows: int, gated: bool) -> int:
        return super()._programs(tile, rows * (1 + gated), gated)

    def _plan_for(self, tokens: int) -> Plan:
        return self.plan or plan_for(tokens, self._spec, self._facts)
