"""Layers of Muse Spark: gates of the residual."""

import torch

from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.spark_layers import LEAST, ResidualGate, SparkParts

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


def test_gates_keep_the_energy_of_both_and_leave_some_of_the_residual():
    ctx = BuildContext(Selector(SLOTS, [], CPU), "bfloat16", "bfloat16", 4, 32)
    gate = ResidualGate(ctx, "gate", 6, SparkParts(temperature=0.3, router_factor=1.0))
    learned = torch.tensor([-3.0, -0.5, 0.0, 0.1, 0.5, 5.0])
    [sink] = ctx.weights.expected["gate"].sinks
    sink(learned)
    new, old = gate.state()["factors"].double().unbind(1)
    torch.testing.assert_close(new, (learned.double() / 0.3).sigmoid(), rtol=1e-6, atol=0)
    torch.testing.assert_close((new**2 + old**2)[:-1], torch.ones(5).double())
    assert abs(old[-1] ** 2 - LEAST) < 1e-6 and new[-1] > 1 - 1e-6
    out, residual = torch.randn(4, 6).bfloat16(), torch.randn(4, 6).bfloat16()
    kept = residual.clone()
    joined = gate(out, residual)
    assert joined.dtype == torch.bfloat16 and torch.equal(residual, kept)
    wanted = out.double() * new + residual.double() * old
    torch.testing.assert_close(joined.double(), wanted, rtol=2**-8, atol=1e-6)
