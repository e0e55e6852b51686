"""The embedding layer keeps the checkpoint's own tensor where it can."""

import torch

from hotshoe.layers import Embedding


def test_rows_times_scale(ctx):
    layer = Embedding(ctx, "e", 10, 4, scale=2.0)
    table = torch.randn(10, 4)
    ctx.weights.feed("e.weight", table)
    ids = torch.tensor([3, 9, 3], dtype=torch.int32)
    assert torch.equal(layer(ids), table[[3, 9, 3]] * 2)


def test_the_table_is_not_copied_where_its_type_is_right(ctx):
    layer = Embedding(ctx, "e", 10, 4)
    table = torch.randn(10, 4)
    ctx.weights.feed("e.weight", table)
    table[5] = 7.0
    assert torch.equal(layer(torch.tensor([5], dtype=torch.int32)), torch.full((1, 4), 7.0))


def test_the_table_is_converted_where_it_is_not(ctx):
    layer = Embedding(ctx, "e", 10, 4)
    ctx.weights.feed("e.weight", torch.randn(10, 4).bfloat16())
    assert layer(torch.tensor([5], dtype=torch.int32)).dtype == torch.float32
