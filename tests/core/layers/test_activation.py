"""The activation layer asks its slot by name."""

import torch
from torch.nn import functional as F

from hotshoe.layers import GatedActivation
from hotshoe.slots import GatedActivationSpec


def test_gated(ctx):
    x = torch.randn(3, 10)
    expected = F.gelu(x[:, :5], approximate="tanh") * x[:, 5:]
    torch.testing.assert_close(GatedActivation(ctx, 5, "gelu_tanh")(x), expected)
    spec = GatedActivationSpec(5, "gelu_tanh", "float32")
    assert list(ctx.selector.decisions) == [("gated_activation", spec)]
