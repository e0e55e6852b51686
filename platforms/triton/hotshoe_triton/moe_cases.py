"""Mixtures of experts, for `cases.py`: specifications that models have, and their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, QuantSpec, RouterSpec
from hotshoe_triton import fp4, fp4_experts, moe

QWEN = MoeSpec(
    LinearSpec(2048, 1536, "bfloat16"),
    LinearSpec(768, 2048, "bfloat16"),
    128,
    8,
    "silu",
    RouterSpec(renormalize=True),
)
OSS = MoeSpec(
    LinearSpec(2880, 5760, "bfloat16", bias=True),
    LinearSpec(2880, 2880, "bfloat16", bias=True),
    32,
    4,
    "silu",
    RouterSpec(renormalize=True),
    limit=7.0,
    alpha=1.702,
    shift=1.0,
)
GROUPED = RouterSpec("sigmoid", True, 2.5, True, groups=8, groups_kept=4, group_score="top2")
MOE = {
    "128x8": QWEN,
    "32x4 clamped": OSS,
    "128x8 grouped": replace(QWEN, router=GROUPED),
    "128x8 ungated": replace(
        QWEN, gate_up=replace(QWEN.gate_up, out_features=768), activation="relu2", gated=False
    ),
}


def quantized(spec: MoeSpec, weight: QuantSpec, x: QuantSpec | None = None) -> MoeSpec:
    """Return the same mixture with quantized experts, and x."""
    sides = {s: replace(getattr(spec, s), weight=weight, activation=x) for s in ("gate_up", "down")}
    return replace(spec, **sides)


#: Both operands in 4-bit floats, as NVFP4 and as MXFP4.
FLOATS = {name: quantized(QWEN, *pair) for name, pair in fp4.FORMS.items()}
FLOATS["mxfp4 clamped"] = quantized(OSS, *fp4.FORMS["mxfp4"])


def expert(facts: DeviceFacts, side: LinearSpec) -> dict[str, list[Tensor]]:
    """Return what an expert loads: plain numbers, or a quantized form."""
    n, k, quant = side.out_features, side.in_features, side.weight
    found = {"weight": [_tensor(facts, n, k)]}
    if quant is not None:
        kind = "float8_e4m3fn" if quant.format == "fp8_e4m3" else "int8"
        height, width = quant.block_shape or (1, quant.group_size or k)
        scales = -(-n // height), -(-k // width)
        found = {"weight": [_tensor(facts, n, k, dtype=kind)]}
        found |= {"weight_scale": [_tensor(facts, *scales)]}
        found |= {
            name: [_tensor(facts, 1, dtype="float32")]
            for name in ("input_scale", "weight_global_scale")
        }
        found |= {"weight_zero_point": [_tensor(facts, *scales, dtype="int8")]}
    return found | ({"bias": [_tensor(facts, n)]} if side.bias else {})


def mix(tokens: int, spec: MoeSpec, stopping: bool = False) -> Callable[[DeviceFacts], bool]:
    """Return a call of a mixture of experts, which may stop between its products."""

    def call(facts: DeviceFacts) -> bool:
        module = moe if spec.gate_up.activation is None else fp4_experts
        if not module.supports(spec, facts).accepted:
            return False
        operation = module.Moe(spec, facts)
        for side, load in (
            (spec.gate_up, operation.load_gate_up),
            (spec.down, operation.load_down),
        ):
            load(0, expert(facts, side))
        logits = _tensor(facts, tokens, spec.num_experts, dtype="float32")
        correction = _tensor(facts, spec.num_experts, dtype="float32")
        x = _tensor(facts, tokens, spec.gate_up.in_features, dtype=spec.dtype)
        given = (x, logits, correction if spec.router.correction else None, None)
        operation.adapted(*given, lambda *_: None) if stopping else operation(*given)
        return True

    return call


def _tensor(facts: DeviceFacts, *shape: int, dtype: str = "bfloat16") -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=facts.device)
