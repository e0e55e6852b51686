"""Factors on q that grow with its position: by steps, and by learned numbers for each head."""

import math

import pytest
import torch

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, HeadTemperature, Temperature

HEADS, DIM = 4, 6


def test_a_temperature_grows_by_steps():
    positions = torch.randint(0, 1 << 20, (50,), dtype=torch.int32)
    for shift in (0, 1):
        found = Temperature(0.3, 7, shift).of(positions)
        expected = [1 + 0.3 * math.log(1 + (p + shift) // 7) for p in positions.tolist()]
        assert found.shape == (50, 1) and found.dtype == torch.float32
        torch.testing.assert_close(found[:, 0].double(), torch.tensor(expected).double())
    assert Temperature(0.3, 7, 1).of(positions).min() >= 1.0


def drawn(ctx):
    """Load random numbers, and return them in float64."""
    made = {part: torch.randn(HEADS) for part in ("scale", "bias")}
    for part, tensor in made.items():
        ctx.weights.feed(f"grow.{part}", tensor)
    ctx.weights.check_complete()
    return {part: tensor.double() for part, tensor in made.items()}


def expected(q, positions, held):
    grown = (positions.double() + 1).log()[:, None] * held["scale"] + held["bias"]
    return (q.double().view(len(q), HEADS, DIM) * grown[..., None]).float()


def test_each_head_has_learned_factors(ctx):
    layer = HeadTemperature(ctx, "grow", HEADS, divided=True)
    held = drawn(ctx)
    positions = torch.tensor([0, 1, 7, 1 << 20], dtype=torch.int32)
    q = torch.randn(4, HEADS * DIM)
    before = q.clone()
    found = layer(q, positions)
    assert found is q and positions.tolist() == [0, 1, 7, 1 << 20]
    wanted = expected(before, positions, held)
    torch.testing.assert_close(q.view(4, HEADS, DIM), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        q[0].view(HEADS, DIM), before[0].view(HEADS, DIM) * held["bias"].float()[:, None]
    )


@pytest.mark.parametrize("divided", [False, True])
def test_ranks_have_their_heads_or_all(ctx, divided):
    positions = torch.tensor([3, 40], dtype=torch.int32)
    q = torch.randn(2, HEADS * DIM)
    for rank in range(2):
        part = BuildContext(ctx.selector, "float32", "float32", 4, 32, rank=rank, size=2)
        layer = HeadTemperature(part, "grow", HEADS, divided=divided)
        wanted = expected(q, positions, drawn(part))
        own = slice(2 * rank, 2 * rank + 2) if divided else slice(None)
        given = q.view(2, HEADS, DIM)[:, own].flatten(1).contiguous()
        found = layer(given, positions).view(2, -1, DIM)
        torch.testing.assert_close(found, wanted[:, own], rtol=1e-5, atol=1e-6)


def test_heads_that_do_not_divide(ctx):
    third = BuildContext(ctx.selector, "float32", "float32", 4, 32, rank=0, size=3)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 3.*4 attention heads"):
        HeadTemperature(third, "grow", HEADS, divided=True)


def test_new_numbers_are_written_in_place(ctx):
    layer = HeadTemperature(ctx, "grow", HEADS, divided=True)
    drawn(ctx)
    before = layer.state()
    ctx.weights.check_update(["grow.scale"])
    ctx.weights.feed("grow.scale", torch.arange(4.0))
    assert before["scale"].tolist() == [0, 1, 2, 3]
    (place,) = ctx.weights.where("grow.bias")
    assert place.holder.state()["bias"].data_ptr() == before["bias"].data_ptr()


def test_factors_are_rounded_once(ctx):
    """In bfloat16 the product alone is rounded."""
    layer = HeadTemperature(ctx, "grow", HEADS, divided=True)
    held = drawn(ctx)
    positions = torch.tensor([5, 900], dtype=torch.int32)
    q = torch.randn(2, HEADS * DIM, dtype=torch.bfloat16)
    wanted = expected(q, positions, held)
    found = layer(q, positions).view(2, HEADS, DIM)
    torch.testing.assert_close(found.float(), wanted, rtol=2**-8, atol=1e-6)
