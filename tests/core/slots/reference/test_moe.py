"""The reference of a mixture of experts against its formula in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, MoeSpec, RouterSpec
from hotshoe.slots.reference.moe import Moe
from hotshoe.slots.reference.router import route

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
GATE_UP = LinearSpec(6, 20, "float32", bias=True)
DOWN = LinearSpec(10, 6, "float32", bias=True)
SPEC = MoeSpec(GATE_UP, DOWN, 5, 2, "silu", RouterSpec(renormalize=True))
GPT_OSS = MoeSpec(
    GATE_UP, DOWN, 5, 2, "silu", RouterSpec(renormalize=True), limit=0.6, alpha=1.702, shift=1.0
)


def filled(spec: MoeSpec) -> tuple[Moe, list[tuple[torch.Tensor, ...]]]:
    """Return an operation, and weight and bias of both matrices of every expert."""
    op, experts = Moe(spec, FACTS), []
    for i in range(spec.num_experts):
        shapes = ((20, 6), (20,), (6, 10), (6,))
        weights = tuple(torch.randn(shape) for shape in shapes)
        op.load_gate_up(i, {"weight": weights[0].split(10), "bias": weights[1].split(10)})
        op.load_down(i, {"weight": [weights[2]], "bias": [weights[3]]})
        experts.append(weights)
    return op, experts


def inner_of(spec: MoeSpec, wide: torch.Tensor) -> torch.Tensor:
    gate, up = wide[:10], wide[10:]
    if spec.limit is None:
        return F.silu(gate.clamp(max=spec.gate_limit or math.inf)) * up
    gate, up = gate.clamp(max=spec.gate_limit or 0.6), up.clamp(-0.6, 0.6)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@pytest.mark.parametrize(
    "spec",
    [SPEC, GPT_OSS, replace(GPT_OSS, gate_limit=0.9), replace(SPEC, gate_limit=0.2)],
    ids=["plain", "clamped", "gates of their own", "gates alone"],
)
def test_formula(spec: MoeSpec) -> None:
    op, experts = filled(spec)
    x, logits = torch.randn(7, 6), torch.randn(7, 5)
    y = op(x, logits, None)
    weights, ids = route(logits, None, 2, spec.router)
    for row in range(7):
        expected = torch.zeros(6, dtype=torch.float64)
        for share, i in zip(weights[row].tolist(), ids[row].tolist(), strict=True):
            first, first_bias, second, second_bias = (t.double() for t in experts[i])
            inner = inner_of(spec, first @ x[row].double() + first_bias)
            expected += share * (second @ inner + second_bias)
        torch.testing.assert_close(y[row].double(), expected, rtol=1e-4, atol=1e-5)


def test_state_names_every_expert_and_is_overwritten_in_place() -> None:
    op, experts = filled(SPEC)
    state = op.state()
    assert state.keys() == {
        f"experts.{i}.{part}.{kind}"
        for i in range(5)
        for part in ("gate_up", "down")
        for kind in ("weight", "bias")
    }
    assert op.nbytes() == sum(t.nbytes for t in state.values()) == 4 * 5 * (3 * 60 + 26)
    fresh = torch.randn(6, 10)
    op.load_down(3, {"weight": [fresh], "bias": [experts[3][3]]})
    assert torch.equal(state["experts.3.down.weight"], fresh)


def test_no_tokens() -> None:
    op, _ = filled(SPEC)
    assert op(torch.empty(0, 6), torch.empty(0, 5), None).shape == (0, 6)
