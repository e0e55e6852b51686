"""Quantized experts against core's reference: every form, by pairs and by blocks."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.test_moe import QWEN, TOLERANCE, spec_of, tokens

from hotshoe.platform import DeviceFacts
from hotshoe.slots import MoeSpec, QuantSpec
from hotshoe.slots.reference.moe import Moe as Reference
from hotshoe_triton import experts, moe
from hotshoe_triton.groups import STRIP
from hotshoe_triton.moe import Plan, Tile

QUANTS = {
    "fp4": QuantSpec("fp4_e2m1", "group", 32),
    "fp4 by bytes": QuantSpec("fp4_e2m1", "group", 16),
    "int4 by group": QuantSpec("int4", "group", 32),
    "int4 with zero points": QuantSpec("int4", "group", 64, symmetric=False),
    "int4 by row": QuantSpec("int4", "channel"),
    "int8 by row": QuantSpec("int8", "channel", online=True),
    "int8 by small groups": QuantSpec("int8", "group", 16),
    "int4 by small groups": QuantSpec("int4", "group", 16, symmetric=False),
    "fp8 by block": QuantSpec("fp8_e4m3", "block", block_shape=(64, 64)),
    "fp8 by tensor": QuantSpec("fp8_e4m3", "tensor"),
}


def quantized(spec: MoeSpec, quant: QuantSpec) -> MoeSpec:
    sides = {name: replace(getattr(spec, name), weight=quant) for name in ("gate_up", "down")}
    return replace(spec, **sides)


def load_quantized(ops: list, spec: MoeSpec, rng: torch.Generator, only: int | None = None) -> None:
    """Give all operations the same integers or floats, and scales."""

    def draw(rows: int, columns: int, quant: QuantSpec) -> dict[str, torch.Tensor]:
        size = (rows, columns)
        top = {"int4": 8, "int8": 128}.get(quant.format, 0)
        if top:
            values = torch.randint(-top, top, size, generator=rng, device=rng.device)
            values = values.to(torch.int8)
        elif quant.format == "fp4_e2m1":
            at = torch.randint(16, size, generator=rng, device=rng.device)
            grid = [0, 1, 2, 3, 4, 6, 8, 12]
            values = torch.tensor(grid + [-v for v in grid], device=rng.device)[at].to(torch.int8)
        else:
            values = torch.randn(size, generator=rng, device=rng.device).to(torch.float8_e4m3fn)
        shape = {
            "group": (rows, columns // (quant.group_size or 1)),
            "channel": (rows, 1),
            "tensor": (1, 1),
            "block": (-(-rows // 64), -(-columns // 64)),
        }[quant.granularity]
        power = torch.randint(-3, 2, shape, generator=rng, device=rng.device)
        scale = torch.exp2(power.float()) / max(8, top)
        if quant.format != "fp4_e2m1":
            scale *= 1 + torch.rand(shape, generator=rng, device=rng.device)
        made = {"weight": values, "weight_scale": scale}
        if quant.group_size == STRIP and quant.format == "fp4_e2m1":
            whole = torch.rand(1, generator=rng, device=rng.device) + 0.1
            signed = scale * torch.randn(shape, generator=rng, device=rng.device)
            made["weight_scale"] = (64 * signed).to(torch.float8_e4m3fn).float() * whole / 2
            made["weight_global_scale"] = whole
        if not quant.symmetric:
            zero = torch.randint(-top, top, shape, generator=rng, device=rng.device)
            made["weight_zero_point"] = zero.to(torch.int8)
        return made

    for expert in range(spec.num_experts) if only is None else [only]:
        for side, count in (("gate_up", 1 + spec.gated), ("down", 1)):
            part = getattr(spec, side)
            rows = part.out_features // count
            drawn = [draw(rows, part.in_features, part.weight) for _ in range(count)]
            tensors = {name: [one[name] for one in drawn] for name in drawn[0]}
            if part.bias:
                tensors["bias"] = [
                    torch.randn(rows, generator=rng, device=rng.device) for _ in range(count)
                ]
            for op in ops:
                getattr(op, f"load_{side}")(expert, tensors)


PACKED = Plan(Tile(16, 64, 0, 4, 2), Tile(16, 64, 0, 4, 2))


@pytest.mark.parametrize("name", QUANTS)
@pytest.mark.parametrize(
    "base",
    [
        spec_of(hidden=128, inner=64),
        spec_of("bfloat16", hidden=64, inner=128, gated=False, limit=0.5, bias=True),
    ],
    ids=["gated", "ungated"],
)
def test_quantized_experts_match_the_reference(
    facts: DeviceFacts, rng: torch.Generator, name: str, base: MoeSpec
) -> None:
    spec = quantized(base, QUANTS[name])
    assert moe.supports(spec, facts).accepted, moe.supports(spec, facts).reason
    op, plain = moe.Moe(spec, facts, PACKED), Reference(spec, facts)
    load_quantized([op, plain], spec, rng)
    for count in (1, 5):
        given = tokens(count, spec, rng)
        got, want = op(*given), plain(*given)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        largest = want.float().abs().amax(1, keepdim=True)
        assert ((got.float() - want.float()).abs() <= TOLERANCE[spec.dtype] * largest).all()


@pytest.mark.parametrize("name", QUANTS)
def test_experts_take_what_is_said(facts: DeviceFacts, rng: torch.Generator, name: str) -> None:
    spec = quantized(spec_of("bfloat16", hidden=256, inner=128), QUANTS[name])
    op = moe.Moe(spec, facts)
    load_quantized([op], spec, rng)
    said = sum(experts.weight_bytes(side, facts) for side in (spec.gate_up, spec.down))
    assert op.nbytes() == pytest.approx(spec.num_experts * said, rel=0.04)


def test_packed_experts_fill_no_chunk_and_are_clamped(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = quantized(
        spec_of(hidden=96, inner=32, limit=0.7, alpha=1.702, shift=1.0, bias=True), QUANTS["fp4"]
    )
    op, plain = moe.Moe(spec, facts), Reference(spec, facts)
    load_quantized([op, plain], spec, rng)
    state = op.state()
    assert state["gate_up.packed"].shape == (8, 2, 64, 32)
    given = tokens(9, spec, rng)
    torch.testing.assert_close(op(*given), plain(*given), rtol=1e-4, atol=1e-4)
    addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
    load_quantized([op, plain], spec, rng, 3)
    assert addresses == {name: tensor.data_ptr() for name, tensor in op.state().items()}
    torch.testing.assert_close(op(*given), plain(*given), rtol=1e-4, atol=1e-4)


def test_nan_in_quantized_numbers_and_x(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = quantized(spec_of(hidden=64, inner=64), QUANTS["fp8 by tensor"])
    op = moe.Moe(spec, facts, PACKED)
    load_quantized([op], spec, rng)
    x, logits, _ = tokens(3, spec, rng)
    x[1, 3] = torch.nan
    assert op(x, logits, None).isnan().all(1).tolist() == [False, True, False]
    bad = torch.full((64, 64), torch.nan).to(rng.device, torch.float8_e4m3fn)
    for expert in range(spec.num_experts):
        op.load_down(expert, {"weight": [bad], "weight_scale": [torch.ones(1, 1)]})
    assert op(x, logits, None).isnan().all()


@pytest.mark.parametrize(
    ("quant", "reason"),
    [
        (QuantSpec("int4", "group", 8), "gate_up has weights"),
        (QuantSpec("int3", "channel"), "not as int3"),
        (QuantSpec("int4", "group", 32, permuted=True), "an order of their own"),
    ],
)
def test_refusals_of_quantized_experts(facts: DeviceFacts, quant: QuantSpec, reason: str) -> None:
    assert reason in moe.supports(quantized(QWEN, quant), facts).reason
    one = replace(QWEN, down=replace(QWEN.down, weight=QUANTS["fp4"]))
    assert "one of an expert's matrices" in moe.supports(one, facts).reason
