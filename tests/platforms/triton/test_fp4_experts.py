"""Experts in 4-bit floats against core's reference, and both against float64.

A number that float32 and float64 put on two sides of the middle of two 4-bit floats changes a
result by a step, so such steps are drawn again: `settled` tells.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, ON_DEVICE, device_facts, far_apart, found_here
from tests.platforms.triton.test_fp4 import (
    COMPILE,
    FORMS,
    INSTRUCTIONS,
    dense,
    quantized,
)
from tests.platforms.triton.test_matrix import need_compiler
from tests.platforms.triton.test_moe import QWEN, spec_of, tokens
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import MoeSpec, Placement
from hotshoe.slots.reference.moe import Moe as Reference
from hotshoe.slots.reference.moe import activated
from hotshoe.slots.reference.router import route
from hotshoe_triton import fp4, fp4_experts, invariant, moe
from hotshoe_triton.device import ARCHS, arch_of

pytestmark = pytest.mark.skipif(
    ON_DEVICE and found_here()[0] not in fp4.SCALED, reason="has no units for 4-bit floats"
)
#: Relative errors of a row: of sums in float32, and of rounded results.
TOLERANCE = {"float32": 1e-5, "bfloat16": 8e-3, "float16": 1e-3}
#: The reference rounds results of the first matrix too, which moves some by a step of four bits.
ROUNDED = 0.3
#: Factors of values that are as good.
NEAR = (1 - 1e-5, 1 + 1e-5)
#: Scales of x, each expert's times a share of its own.
X_SCALES = {"gate_up": 0.0025, "down": 0.004}


@pytest.fixture
def facts() -> DeviceFacts:
    return device_facts(found_here()[0] if ON_DEVICE else "sm_100", DEVICE)


def floats(spec: MoeSpec, form: str) -> MoeSpec:
    sides = {side: replace(getattr(spec, side), **FORMS[form]) for side in ("gate_up", "down")}
    return replace(spec, **sides)


SPECS = {
    "gated": spec_of(hidden=64, inner=160),
    "ungated": spec_of(hidden=320, inner=64, gated=False, kind="relu2", bias=True),
    "clamped": spec_of(hidden=96, inner=32, limit=0.7, alpha=1.702, shift=1.0, bias=True),
    "gates of their own": spec_of(hidden=64, inner=32, limit=0.4, gate_limit=0.9),
    "bfloat16": spec_of("bfloat16", hidden=64, inner=64, bias=True),
    "float16": spec_of("float16", hidden=64, inner=64),
}


class Experts:
    """What a checkpoint holds of all experts, and the mixture by its numbers."""

    def __init__(self, spec: MoeSpec, rng: torch.Generator) -> None:
        self.spec, self.size, self.rng = spec, spec.gate_up.weight.group_size, rng
        self.w: dict[tuple[str, int], Tensor] = {}
        self.bias: dict[tuple[str, int], Tensor] = {}
        self.x_scales = {side: torch.zeros(spec.places) for side in X_SCALES}
        self.tensors: dict[tuple[str, int], dict[str, list[Tensor]]] = {}
        for expert in range(spec.places):
            self.draw(expert)

    def draw(self, expert: int) -> None:
        for side, count in (("gate_up", 1 + self.spec.gated), ("down", 1)):
            part = getattr(self.spec, side)
            rows, found, numbers = part.out_features // count, {}, []
            for i in range(count):
                whole = 3e-4 * (1 + i) if self.size == 16 else None
                w = torch.randn(rows, part.in_features, generator=self.rng, device=self.rng.device)
                values, scale = quantized(w / 8, self.size, whole)
                numbers.append(dense(values, scale))
                made = {"weight": values.to(torch.int8), "weight_scale": scale.float()}
                if whole is not None:
                    share = 0.5 if expert % 3 else 1 - 0.25 * i
                    made["weight_global_scale"] = torch.tensor([whole])
                    made["input_scale"] = torch.tensor([X_SCALES[side] * share])
                if part.bias:
                    made["bias"] = torch.randn(rows, generator=self.rng, device=self.rng.device)
                    made["bias"] = made["bias"].to(getattr(torch, part.dtype))
                for name, tensor in made.items():
                    found.setdefault(name, []).append(tensor)
            at = side, expert
            self.tensors[at], self.w[at] = found, torch.cat(numbers)
            self.bias[at] = torch.cat(found["bias"]).double() if part.bias else 0.0
            if self.size == 16:
                self.x_scales[side][expert] = max(map(float, found["input_scale"]))

    def set_scale(self, side: str, expert: int, scale: float) -> None:
        """Give x another scale."""
        found = self.tensors[side, expert]
        found["input_scale"] = [torch.tensor([scale])] * len(found["weight"])
        self.x_scales[side][expert] = scale

    def load(self, *ops: object, only: int | None = None) -> None:
        for (side, expert), tensors in self.tensors.items():
            if only in (None, expert):
                for op in ops:
                    getattr(op, f"load_{side}")(expert, tensors)

    def rounded(self, values: Tensor, side: str) -> Tensor:
        whole = float(self.x_scales[side].max()) if self.size == 16 else None
        return dense(*quantized(values, self.size, whole))

    def settled(self, values: Tensor, side: str, dtype: torch.dtype) -> bool:
        """Tell whether values a little smaller or larger become the same 4-bit floats."""
        whole = float(self.x_scales[side].max()) if self.size == 16 else None
        found = [quantized((values * f).to(dtype), self.size, whole) for f in (1, *NEAR)]
        return all(torch.equal(a, b) for one in found for a, b in zip(one, found[0], strict=True))

    def expected(self, x: Tensor, logits: Tensor, places: Tensor | None = None) -> Tensor | None:
        """Return the mixture in float64; None where rounding decides about a step."""
        spec, dtype = self.spec, x.dtype
        shares, ids = route(logits, None, spec.top_k, spec.router)
        ids = ids if places is None else places[ids]
        y = torch.zeros(len(x), spec.down.out_features, dtype=torch.float64, device=x.device)
        taken = self.rounded(x, "gate_up")
        for row in range(len(x)):
            for share, expert in zip(shares[row].tolist(), ids[row].tolist(), strict=True):
                if expert == spec.places:
                    continue
                wide = taken[row] @ self.w["gate_up", expert].T + self.bias["gate_up", expert]
                inner = activated(wide[None], spec)
                if not self.settled(inner, "down", dtype):
                    return None
                out = self.rounded(inner.to(dtype), "down") @ self.w["down", expert].T
                y[row] += share * (out + self.bias["down", expert])[0]
        return y


def step(
    experts: Experts, count: int, places: Tensor | None = None
) -> tuple[tuple[Tensor, Tensor, None], Tensor]:
    """Draw what a call takes, and what it gives."""
    for _ in range(100):
        given = tokens(count, experts.spec, experts.rng)
        wanted = experts.expected(given[0], given[1], places)
        if wanted is not None:
            return given, wanted
    raise AssertionError("no step of a hundred is settled")


def close(got: Tensor, wanted: Tensor, limit: float | None = None) -> bool:
    error = (got.double() - wanted).norm(dim=1)
    limit = limit or TOLERANCE[str(got.dtype)[6:]]
    return bool((error <= limit * wanted.norm(dim=1)).all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SPECS)
def test_experts_match_the_reference(
    name: str, form: str, facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = floats(SPECS[name], form)
    verdict = fp4_experts.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    experts, op, plain = Experts(spec, rng), fp4_experts.Moe(spec, facts), Reference(spec, facts)
    experts.load(op, plain)
    for count in (1, 5):
        given, wanted = step(experts, count)
        assert close(plain(*given), wanted, None if spec.dtype == "float32" else ROUNDED)
        got = op(*given)
        assert (got.dtype, got.shape) == (given[0].dtype, wanted.shape)
        assert close(got, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_many_tokens_of_one_expert(form: str, facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = floats(spec_of(hidden=64, inner=32, experts=2), form)
    experts, op = Experts(spec, rng), fp4_experts.Moe(spec, facts)
    assert fp4_experts.plan_for(24, spec, facts).first.pairs == 64
    experts.load(op)
    given, wanted = step(experts, 24)
    assert close(op(*given), wanted)


# Of numbers that nobody has written.
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_a_rank_with_some_experts(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(floats(spec_of(hidden=64, inner=32), "nvfp4"), held=3)
    experts = Experts(spec, rng)
    op, plain = fp4_experts.Moe(spec, facts), Reference(spec, facts)
    experts.load(op, plain)
    table = torch.tensor([[3, 0, 3, 1, 3, 3, 2, 3]], dtype=torch.int32, device=rng.device)
    given, wanted = step(experts, 9, table[0].long())
    assert wanted.norm() > 0
    for one in (op, plain):
        got = one(*given, Placement(table)).double()
        assert (got - wanted).norm() < 1e-5 * wanted.norm()
    for name, tensor in op.state().items():  # as experts that move need it
        assert len(tensor) == 3, name


@pytest.mark.parametrize("form", FORMS)
def test_products_are_changed_as_in_the_reference(
    form: str, facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = floats(SPECS["clamped"], form)
    experts, op, plain = Experts(spec, rng), fp4_experts.Moe(spec, facts), Reference(spec, facts)
    experts.load(op, plain)
    given, wanted = step(experts, 4)
    assert close(op.adapted(*given, None, lambda *_: None), wanted)

    def change(name: str, y: Tensor, x: Tensor, tokens: Tensor, experts: Tensor) -> None:
        if name == "down":
            y += (tokens - 2 * experts)[:, None] * x[:, :1] / 8

    got, want = (one.adapted(*given, None, change).double() for one in (op, plain))
    assert close(got.float(), want) and not close(got.float(), wanted)


def test_scales_of_x_are_the_largest_of_experts_that_are_here(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    """Also once that one was loaded again. Experts that have none say nothing."""
    spec = floats(SPECS["gated"], "nvfp4")
    experts, op, plain = Experts(spec, rng), fp4_experts.Moe(spec, facts), Reference(spec, facts)
    for side, scale in X_SCALES.items():
        experts.set_scale(side, 5, 4 * scale)
        experts.set_scale(side, 2, 0.0)
    experts.load(op, plain)
    addresses = {name: held.data_ptr() for name, held in op.state().items()}
    given, wanted = step(experts, 5)
    assert close(op(*given), wanted) and close(plain(*given), wanted)
    experts.draw(5)
    experts.load(op, plain, only=5)
    given, wanted = step(experts, 5)
    assert close(op(*given), wanted) and close(plain(*given), wanted)
    assert {name: held.data_ptr() for name, held in op.state().items()} == addresses
    assert op.nbytes() == sum(held.nbytes for held in op.state().values())
    for side in X_SCALES:
        for expert in range(8):
            experts.set_scale(side, expert, 0.0)
    experts.load(op, plain)
    assert op(*given).isnan().all() and plain(*given).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_in_its_row(
    form: str, facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = floats(SPECS["gated"], form)
    experts, op = Experts(spec, rng), fp4_experts.Moe(spec, facts)
    experts.load(op)
    x, logits, _ = tokens(5, spec, rng)
    x[1, 3], x[4, 0], logits[3, 0] = torch.nan, torch.inf, torch.nan
    found = op(x, logits, None).isnan()
    assert found.all(1).tolist() == found.any(1).tolist() == [False, True, False, True, True]


def test_empty_batches_and_rows_far_apart(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = floats(SPECS["bfloat16"], "mxfp4")
    op = fp4_experts.Moe(spec, facts)
    assert op.state() == {} and op.nbytes() == 0
    Experts(spec, rng).load(op)
    assert op(*tokens(0, spec, rng)).shape == (0, 64)
    x, logits, _ = tokens(3, spec, rng)
    assert torch.equal(op(far_apart(x), logits, None), op(x, logits, None))


FLOATS = floats(QWEN, "nvfp4")


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch in fp4.SCALED])
def test_plans_fit_shared_memory(arch: str) -> None:
    facts = device_facts(arch)
    for plan in (fp4_experts.plan_for(1 << i, FLOATS, facts) for i in range(14)):
        tile = plan.first
        stage = (tile.rows + tile.pairs) * (tile.columns // 2 + tile.columns // 16)
        assert plan.second == tile and stage * tile.stages <= arch_of(facts).shared_bytes


@pytest.mark.parametrize(
    ("spec", "arch", "reason"),
    [
        (FLOATS, "sm_90", "sm_90 has no matrix units that scale groups"),
        (FLOATS, "sm_121", "Triton 3.6 compiles products of 4-bit floats for sm_120"),
        (FLOATS, "gfx950", "gate_up: groups of 16 are not scaled"),
        (QWEN, "sm_100", "gate_up: operands None and None are not both 4-bit floats"),
        (replace(FLOATS, down=QWEN.down), "sm_100", "down: operands None and None"),
        (floats(spec_of(hidden=64, inner=48), "mxfp4"), "sm_100", "divides 48 inputs, not 32"),
        (replace(FLOATS, num_experts=5000), "sm_100", "more than 4096 experts"),
        (replace(FLOATS, top_k=129), "sm_100", "chooses 1 to 128 experts"),
    ],
)
def test_refusals(spec: MoeSpec, arch: str, reason: str) -> None:
    verdict = fp4_experts.supports(spec, device_facts(arch))
    assert not verdict.accepted and reason in verdict.reason


def test_others_leave_such_x_to_this_candidate(facts: DeviceFacts) -> None:
    for judge in (moe.supports, invariant.moe):
        reason = judge(floats(QWEN, "mxfp4"), facts).reason
        assert "quantizes x; experts are multiplied with x" in reason


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "form"), INSTRUCTIONS)
def test_matrix_units_scale_the_groups(arch: str, form: str) -> None:
    need_compiler(arch)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = COMPILE.replace("[text]", "*_, text").replace("scaled_fp4", "grouped_fp4")
    command = [sys.executable, "-c", script, arch, f"moe {form} 64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(json.loads(done.stdout)) == {INSTRUCTIONS[arch, form]}
