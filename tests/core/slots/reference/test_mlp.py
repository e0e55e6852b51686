"""The reference of a whole MLP block against its formula in float64."""

import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedMlpSpec, LinearSpec
from hotshoe.slots.reference.mlp import GatedMlp

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


def test_formula() -> None:
    gate_up = LinearSpec(6, 20, "float32", bias=True)
    op = GatedMlp(GatedMlpSpec(gate_up, LinearSpec(10, 6, "float32"), "silu"), FACTS)
    gate, up, down, bias = (torch.randn(s) for s in ((10, 6), (10, 6), (6, 10), (20,)))
    op.load_gate_up({"weight": [gate, up], "bias": [bias]})
    op.load_down({"weight": [down]})
    x = torch.randn(5, 6)
    wide = x.double() @ torch.cat([gate, up]).double().T + bias.double()
    inner = F.silu(wide[:, :10]) * wide[:, 10:]
    torch.testing.assert_close(op(x).double(), inner @ down.double().T, rtol=1e-4, atol=1e-5)
    assert op.nbytes() == 4 * (3 * 60 + 20)
