"""xIELU against float64, with constants of a checkpoint and without."""

import pytest
import torch
from torch.nn import functional as F

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.xielu import Xielu

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


def expected(x, alpha_p, alpha_n, beta=0.5, eps=-1e-6):
    x = x.double()
    above = F.softplus(alpha_p.double()) * x * x
    below = (beta + F.softplus(alpha_n.double())) * (torch.expm1(x.clamp(max=eps)) - x)
    return torch.where(x > 0, above, below) + beta * x


@pytest.mark.parametrize("constants", [{}, {"beta": 0.25, "eps": -0.5}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_sides_of_zero(dtype: str, constants: dict[str, float]) -> None:
    ctx = BuildContext(Selector(SLOTS, [], CPU), dtype, dtype, 4, 32)
    layer = Xielu(ctx, "act")
    alphas = torch.randn(2)
    given = dict(zip(("alpha_p", "alpha_n"), alphas, strict=True))
    for name, value in {**given, **constants}.items():
        ctx.weights.feed(f"act.{name}", torch.as_tensor(value))
    ctx.weights.check_complete()
    x = torch.randn(5, 64).mul_(2).to(getattr(torch, dtype))
    x[0, 0] = 0
    found = layer(x)
    assert found.dtype == x.dtype
    near = 1e-5 if dtype == "float32" else 2**-7
    torch.testing.assert_close(
        found.double(), expected(x, *alphas, **constants), rtol=near, atol=near
    )


def test_slopes_are_needed_and_lie_in_place() -> None:
    ctx = BuildContext(Selector(SLOTS, [], CPU), "bfloat16", "bfloat16", 4, 32)
    layer = Xielu(ctx, "act")
    with pytest.raises(CheckpointError, match=r"lacks act\.alpha_n, act\.alpha_p$"):
        ctx.weights.check_complete()
    for name in ("alpha_p", "alpha_n"):
        ctx.weights.feed(f"act.{name}", torch.ones(1))
    places = {name: tensor.data_ptr() for name, tensor in layer.state().items()}
    before = layer(torch.ones(3))
    for name in places:
        ctx.weights.feed(f"act.{name}", torch.full((1,), 0.3))
    assert {name: tensor.data_ptr() for name, tensor in layer.state().items()} == places
    assert not torch.equal(layer(torch.ones(3)), before)
