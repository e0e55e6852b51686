"""What a row becomes does not depend on the rows beside it, to the last bit."""

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.slots import LinearSpec
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
