"""The linear layer: parts stacked in order whatever the loading order, and let go of afterwards."""

import random
import weakref

import pytest
import torch

from hotshoe.layers import BuildContext, Linear, Matrix, OnlineFormat, Section, Split, Storage
from hotshoe.slots import LinearSpec, QuantSpec

PARTS = [("q", 6), ("k", 2), ("v", 3)]
WEIGHT = QuantSpec("int8", "channel", online=True)
ACTIVATION = QuantSpec("int8", "token", dynamic=True)


class Method(OnlineFormat):
    """Quantizes all but one layer."""

    def storage(self, layer, shape):
        return None if layer == "plain" else Storage(WEIGHT, ACTIVATION)


def draw(bias):
    tensors = {f"{name}.weight": torch.randn(size, 5) for name, size in PARTS}
    if bias:
        tensors |= {f"{name}.bias": torch.randn(size) for name, size in PARTS}
    return tensors


@pytest.mark.parametrize("bias", [False, True])
def test_parts_are_stacked_whatever_the_order(ctx, bias):
    layer = Linear(ctx, Matrix(ctx, PARTS, 5, bias=bias))
    tensors = draw(bias)
    names = random.sample(list(tensors), len(tensors))
    for name in names:
        ctx.weights.feed(name, tensors[name])
    ctx.weights.check_complete()
    x = torch.randn(4, 5)
    expected = torch.cat([x @ tensors[f"{name}.weight"].T for name, _ in PARTS], 1)
    if bias:
        expected += torch.cat([tensors[f"{name}.bias"] for name, _ in PARTS])
    torch.testing.assert_close(layer(x), expected)


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


def test_the_size_of_the_prepared_weight_is_registered(ctx):
    Linear(ctx, Matrix(ctx, [("w", 8)], 5))
    ctx.weights.feed("w.weight", torch.randn(8, 5))
    assert [count() for count in ctx.weight_bytes] == [8 * 5 * 4]


def specs(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "linear"]


def test_the_method_says_what_is_quantized_and_the_model_what_is_not(ctx):
    ctx.format = Method()
    Linear(ctx, Matrix(ctx, [("a", 8), ("b", 8)], 5))
    Linear(ctx, Matrix(ctx, [("plain", 8)], 5))
    Linear(ctx, Matrix(ctx, [("head", 7)], 5, quantize=False), out_dtype="float16")
    assert specs(ctx) == [
        LinearSpec(5, 16, "float32", weight=WEIGHT, activation=ACTIVATION),
        LinearSpec(5, 8, "float32"),
        LinearSpec(5, 7, "float32", out_dtype="float16"),
    ]


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
