"""Quantized experts by native products against the reference."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, QuantSpec, RouterSpec
from hotshoe.slots.reference.moe import Moe as Reference
from hotshoe_cpu.experts import Moe, supports

FORMS = {
    "fp4": QuantSpec("fp4_e2m1", "group", 32),
    "int4": QuantSpec("int4", "group", 32),
    "zero points": QuantSpec("int4", "group", 64, symmetric=False),
    "int8": QuantSpec("int8", "channel"),
    "fp8 blocks": QuantSpec("fp8_e4m3", "block", block_shape=(32, 32)),
}


def spec_of(quant: QuantSpec | None, dtype: str = "float32", **more: object) -> MoeSpec:
    gate_up = LinearSpec(64, 128, dtype, bias=True, weight=quant)
    down = LinearSpec(64, 64, dtype, bias=True, weight=quant)
    return MoeSpec(gate_up, down, 6, 2, "silu", RouterSpec(renormalize=True), **more)


def drawn(side: LinearSpec, rng: torch.Generator) -> dict[str, list[torch.Tensor]]:
    """Return one matrix's numbers, scales, zero points and bias."""
    quant, rows, columns = side.weight, side.out_features, side.in_features
    top = {"int4": 8, "int8": 128}.get(quant.format, 0)
    if top:
        values = torch.randint(-top, top, (rows, columns), generator=rng).to(torch.int8)
    elif quant.format == "fp8_e4m3":
        values = torch.randn(rows, columns, generator=rng).to(torch.float8_e4m3fn)
    else:
        doubled = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
        values = doubled[torch.randint(16, (rows, columns), generator=rng)].to(torch.int8)
    height, width = quant.block_shape or (1, quant.group_size or columns)
    shape = rows // height, columns // width
    scale = torch.exp2(torch.randint(-4, 0, shape, generator=rng).float()) / max(8, top)
    found = {"weight": [values], "weight_scale": [scale]}
    if not quant.symmetric:
        found["weight_zero_point"] = [torch.randint(-8, 8, shape, generator=rng).to(torch.int8)]
    return found | {"bias": [torch.randn(rows, generator=rng)]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_matches_the_reference(
    facts: DeviceFacts, rng: torch.Generator, name: str, dtype: str
) -> None:
    clamped = {"limit": 0.7, "alpha": 1.702, "shift": 1.0} if name == "fp4" else {}
    spec = spec_of(FORMS[name], dtype, **clamped)
    assert supports(spec, facts).score == 50
    native, plain = Moe(spec, facts), Reference(spec, facts)
    for expert in range(spec.num_experts):
        for side in ("gate_up", "down"):
            tensors = drawn(getattr(spec, side), rng)
            for op in (native, plain):
                getattr(op, f"load_{side}")(expert, tensors)
    for rows in (0, 1, 40):
        x = torch.randn(rows, 64, generator=rng).to(getattr(torch, dtype))
        logits = torch.randn(rows, spec.num_experts, generator=rng)
        want, got = plain(x, logits, None).float(), native(x, logits, None).float()
        limit = (1e-4 if dtype == "float32" else 2.5e-2) * want.abs().amax(1, keepdim=True)
        assert ((got - want).abs() <= limit).all()


def test_refusals(facts: DeviceFacts) -> None:
    assert supports(spec_of(None), facts).reason == "gate_up is not quantized"
    spec = spec_of(FORMS["fp4"])
    x = QuantSpec("fp8_e4m3", "token", dynamic=True)
    side = replace(spec.gate_up, weight=QuantSpec("fp8_e4m3", "channel"), activation=x)
    assert "gate_up: x would have to" in supports(replace(spec, gate_up=side), facts).reason
    assert "the reference" in supports(replace(spec, activation="elu"), facts).reason
