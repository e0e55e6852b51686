"""What a row becomes does not depend on the rows beside it, to the last bit."""

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.slots import LinearSpec, MoeSpec
from hotshoe_triton import invariant
from hotshoe_triton.device import ARCHS

SPEC = LinearSpec(128, 80, "bfloat16")


@pytest.mark.parametrize("out_dtype", [None, "float32"])
def test_rows_stand_alone(facts, out_dtype) -> None:
    spec = LinearSpec(128, 80, "bfloat16", out_dtype=out_dtype)
    op = invariant.Linear(spec, facts)
    weight = torch.randn(80, 128, device=facts.device).bfloat16()
    op.load({"weight": [weight]})
    x = torch.randn(130, 128, device=facts.device).bfloat16()
    whole = op(x)
    for rows in (1, 3, 64, 65, 129):
        assert torch.equal(op(x[:rows]), whole[:rows])
    assert torch.equal(op(x[70:71]), whole[70:71])
    expected = x.double() @ weight.double().T
    assert (whole.double() - expected).norm() / expected.norm() < 4e-3


@pytest.mark.parametrize("arch", ARCHS)
def test_it_serves_every_architecture_as_the_last_choice(arch: str) -> None:
    assert invariant.linear(SPEC, device_facts(arch)).score == invariant.SCORE
    assert not invariant.linear(SPEC, device_facts("sm_70")).accepted


def test_tokens_of_a_mixture_stand_alone(facts) -> None:
    sides = LinearSpec(64, 96, "bfloat16"), LinearSpec(48, 64, "bfloat16")
    spec = MoeSpec(*sides, 4, 2, "silu")
    op = invariant.Moe(spec, facts)
    for expert in range(4):
        op.load_gate_up(expert, {"weight": [torch.randn(96, 64, device=facts.device) / 8]})
        op.load_down(expert, {"weight": [torch.randn(64, 48, device=facts.device) / 8]})
    x = torch.randn(70, 64, device=facts.device).bfloat16()
    logits = torch.randn(70, 4, device=facts.device)
    whole = op(x, logits, None)
    for rows in (slice(0, 1), slice(40, 41), slice(3, 60)):
        assert torch.equal(op(x[rows], logits[rows], None), whole[rows])
    assert invariant.moe(spec, facts).score == invariant.SCORE
