"""What the kernels of slots over states share: refusals, and the arguments of a step."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, StateSpaceWeights
from hotshoe_conformance.cases import state_space
from hotshoe_cpu.states import StateBlock, judge_states

SPEC = state_space.BASE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float64"}, "element type float64"),
        ({"conv_dtype": "float8_e4m3"}, "conv_dtype float8_e4m3 is not one of"),
        ({"state_dtype": "float64"}, "state_dtype float64 is not one of"),
        ({"checkpoints": "some"}, "checkpoints some is not one of none, align, all"),
        ({"conv_width": 1}, "conv_width 1 leaves nothing"),
        ({"block_size": 0}, "block_size 0 is not positive"),
    ],
)
def test_refusals_name_the_field(
    facts: DeviceFacts, change: dict[str, object], reason: str
) -> None:
    assert judge_states(SPEC, facts, {}).accepted
    verdict = judge_states(replace(SPEC, **change), facts, {})
    assert not verdict.accepted and reason in verdict.reason


def test_other_refusals_are_heard(facts: DeviceFacts) -> None:
    assert judge_states(SPEC, facts, {"too wide": True}).reason == "too wide"


def test_arguments_are_addresses_strides_and_codes() -> None:
    conv, states = torch.empty(5, 3, 8, dtype=torch.bfloat16), torch.empty(5, 2, 4, 4)
    table = torch.zeros(2, 6, dtype=torch.int32)[:, :4]
    starts, lens = torch.tensor([0, 1, 3]).int(), torch.tensor([4, 2]).int()
    step = AttentionMetadata(2, starts, lens, table, table, 2, 4)
    weights = StateSpaceWeights(torch.ones(3), None, *torch.ones(3, 2), None)
    projected, found = torch.empty(4, 9)[:3, :7], []
    spec = replace(SPEC, conv_dtype="bfloat16")
    op = StateBlock(lambda *args: found.extend(args), spec, ("norm", "d", "conv_bias"), (7, 0.5))
    out = op(projected, (conv, states), step, weights)
    assert out.shape == (3, spec.inner_size)
    assert found == [
        *(out.data_ptr(), projected.data_ptr(), 9),
        *(conv.data_ptr(), 24, 1, states.data_ptr(), 32, 0),
        *(table.data_ptr(), 6, starts.data_ptr(), lens.data_ptr(), 2),
        *(0, weights.d.data_ptr(), 0),
        *(7, 0.5),
    ]
