"""Matrices on their way into operations: order, ranks, and what is let go."""

import weakref

import pytest
import torch
from tests.core.layers.test_linear import PARTS, draw

from hotshoe.layers import BuildContext, Linear, Matrix, OnlineFormat, Section, Split, Storage
from hotshoe.slots import QuantSpec


def test_matrices_that_are_stored_transposed(ctx):
    """Whole, and as the second rank of two that divide outputs or inputs."""
    stacked, tensor, x = torch.randn(6, 11), torch.randn(6, 4), torch.randn(3, 6)
    whole = Linear(ctx, Matrix(ctx, [("s", 11)], 6, bias=True, transposed=True))
    ctx.weights.feed("s.weight", stacked)
    ctx.weights.feed("s.bias", bias := torch.randn(11))
    torch.testing.assert_close(whole(x), x @ stacked + bias)
    rows, columns = Split(((2, 4),)), Split(((3, 6),))
    outputs = Linear(ctx, Matrix(ctx, [("o", 4)], 6, outputs=rows, transposed=True))
    inputs = Linear(ctx, Matrix(ctx, [("i", 4)], 6, inputs=columns, transposed=True))
    for name in "oi":
        ctx.weights.feed(f"{name}.weight", tensor)
    torch.testing.assert_close(outputs(x), (x @ tensor)[:, 2:])
    torch.testing.assert_close(inputs(x[:, 3:]), x[:, 3:] @ tensor[3:])


def test_rows_come_in_the_order_of_the_split(ctx):
    split = Split(((4, 6), (0, 1), (2, 3)))
    layer = Linear(ctx, Matrix(ctx, [("w", 6)], 5, bias=True, outputs=split))
    weight, bias, x = torch.randn(6, 5), torch.randn(6), torch.randn(3, 5)
    ctx.weights.feed("w.weight", weight)
    ctx.weights.feed("w.bias", bias)
    torch.testing.assert_close(layer(x), (x @ weight.T + bias)[:, [4, 5, 0, 2]])


def test_checkpoint_tensors_are_let_go(ctx):
    layer = Linear(ctx, Matrix(ctx, PARTS, 5))
    tensors = draw(False)
    alive = [weakref.ref(t) for t in tensors.values()]
    for name in list(tensors):
        ctx.weights.feed(name, tensors.pop(name))
    assert [ref() for ref in alive] == [None] * len(PARTS)
    assert layer(torch.ones(1, 5)).isfinite().all()


class Adding:
    """A communicator that notes what it is to add up."""

    def __init__(self) -> None:
        self.terms = []

    def all_reduce(self, x, out):
        assert out is x
        self.terms.append(x.clone())
        return x


def parallel(ctx, rank, size, communicator=None):
    return BuildContext(
        ctx.selector, "float32", "float32", 4, 32, rank=rank, size=size, communicator=communicator
    )


@pytest.mark.parametrize("bias", [False, True])
def test_ranks_divide_outputs_part_by_part(ctx, bias):
    """Rows of each part go to the rank whatever names they come under."""
    parts, tensors = [("q", 6), ("kv", 4)], {}
    for name, size in parts:
        tensors |= {f"{name}.weight": torch.randn(size, 5), f"{name}.bias": torch.randn(size)}
    x = torch.randn(3, 5)
    for rank in (0, 1):
        own = parallel(ctx, rank, 2)
        split = own.split("rows", Section(2, 3), Section(1, 2, shared=True), Section(2))
        layer = Linear(own, Matrix(own, parts, 5, bias=bias, outputs=split))
        for name in own.weights.expected:
            own.weights.feed(name, tensors[name])
        rows = [slice(3 * rank, 3 * rank + 3), [0, 1, 2 + rank]]
        expected = torch.cat(
            [x @ tensors[f"{n}.weight"][r].T for (n, _), r in zip(parts, rows, strict=True)], 1
        )
        if bias:
            expected += torch.cat([tensors["q.bias"][rows[0]], tensors["kv.bias"][rows[1]]])
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("bias", [False, True])
def test_ranks_divide_inputs_and_add_up(ctx, bias):
    weight, offset, x = torch.randn(4, 6), torch.randn(4), torch.randn(3, 6)
    group = Adding()
    for rank in (0, 1, 2):
        own = parallel(ctx, rank, 3, group)
        layer = Linear(
            own, Matrix(own, [("o", 4)], 6, bias=bias, inputs=own.split("columns", Section(3, 2)))
        )
        own.weights.feed("o.weight", weight)
        if bias:
            own.weights.feed("o.bias", offset)
        own.weights.check_complete()
        layer(x[:, 2 * rank : 2 * rank + 2])
    expected = x @ weight.T + (offset if bias else 0)
    torch.testing.assert_close(torch.stack(group.terms).sum(0), expected)


def test_a_rank_keeps_no_more_than_its_part(ctx):
    own = parallel(ctx, 1, 4)
    Linear(own, Matrix(own, [("w", 8)], 6, outputs=own.split("rows", Section(8))))
    own.weights.feed("w.weight", torch.randn(8, 6))
    assert [count() for count in own.weight_bytes] == [2 * 6 * 4]


def test_what_becomes_of_a_matrix_tells_of_x_that_stays_as_it_is(ctx):
    class Left(OnlineFormat):
        def storage(self, layer, shape):
            return Storage(QuantSpec("int8", "channel"), left=QuantSpec("int8", "token"))

    ctx.format = Left(Storage(QuantSpec("int8", "channel")))
    Linear(ctx, Matrix(ctx, [("w", 6)], 5))
    [place] = ctx.weights.where("w.weight")
    assert (
        place.holder.form == "int8 by channel (x as it is, where the checkpoint has int8 by token)"
    )
