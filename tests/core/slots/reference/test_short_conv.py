"""The short-convolution reference against the sum written out in float64, token by token."""

import pytest
import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, ShortConvSpec, ShortConvWeights, StepShape
from hotshoe.slots.reference.short_conv import ShortConv

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
LENGTH = 21


@pytest.mark.parametrize("width", [2, 3, 7])
@pytest.mark.parametrize("counts", [[LENGTH], [1] * LENGTH, [9, 1, 1, 8, 2]])
@pytest.mark.parametrize("bias", [True, False])
def test_steps_of_any_size_are_the_convolution(width, counts, bias):
    spec = ShortConvSpec(6, width, "float32", "float32", 8, "align")
    weights = ShortConvWeights(torch.randn(6, width), torch.randn(6) if bias else None)
    projected = torch.randn(LENGTH, sum(spec.sections))
    before, behind, x = projected.double().split(list(spec.sections), dim=1)
    padded = F.pad(before * x, (0, 0, width - 1, 0))
    taps = weights.conv.double().T
    mixed = torch.stack([(padded[t : t + width] * taps).sum(0) for t in range(LENGTH)])
    expected = behind * (mixed if weights.conv_bias is None else mixed + weights.conv_bias.double())

    op, done, found = ShortConv(spec, CPU), 0, []
    cache = torch.full((4, width - 1, 6), torch.nan)
    for n in counts:
        own, done = projected[done : done + n], done + n
        lens = torch.tensor([done], dtype=torch.int32)
        shape = StepShape(1, torch.tensor([0, n], dtype=torch.int32), lens, n, done)
        view = CacheView(
            torch.arange(4, dtype=torch.int32)[None], torch.zeros(n, dtype=torch.int32)
        )
        found.append(op(own.clone(), (cache,), op.prepare(shape, view), weights))
    scale = expected.abs().max().item()
    torch.testing.assert_close(torch.cat(found).double(), expected, rtol=0, atol=1e-5 * scale)
    kept = cache[(LENGTH - 1) // 8].double()
    torch.testing.assert_close(kept, padded[LENGTH:], rtol=0, atol=1e-5 * scale)
