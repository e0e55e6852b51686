"""Formats: what a rank keeps of a tensor, checkpoints that are quantized already, old plugins."""

import pytest
import torch

from hotshoe.errors import CheckpointError, PluginError
from hotshoe.layers import (
    BuildContext,
    Linear,
    Matrix,
    OnlineFormat,
    Section,
    Share,
    Storage,
    TensorSpec,
    WeightFormat,
    checked_format,
)
from hotshoe.slots import QuantSpec
from hotshoe.slots.reference.linear import quantize_rows

EIGHT_BITS = Storage(QuantSpec("int8", "channel"), QuantSpec("int8", "token", dynamic=True))


class Transposed(WeightFormat):
    """A checkpoint of int8 matrices [inputs, outputs], with scales of another name."""

    def storage(self, layer, shape):
        return None if layer == "plain" else EIGHT_BITS

    def tensors(self, layer, shape, share):
        rows, columns = shape
        kept = tuple((share.columns, part) for part in share.rows)
        return {
            "qweight": TensorSpec((columns, rows), kept, frozenset({torch.int8})),
            "scales": TensorSpec((rows,), tuple((part,) for part in share.rows)),
        }

    def canonical(self, layer, tensors):
        weight = [part.T.contiguous() for part in tensors["qweight"]]
        rest = {"bias": tensors["bias"]} if "bias" in tensors else {}
        return {"weight": weight, "weight_scale": tensors["scales"], **rest}


def stored(sizes, inputs):
    """Return random matrices by name, and a checkpoint that holds them in eight bits."""
    tensors, exact = {}, {}
    for name, size in sizes:
        values, scale = quantize_rows(torch.randn(size, inputs))
        tensors |= {f"{name}.qweight": values.T.contiguous(), f"{name}.scales": scale}
        exact[name] = values * scale[:, None]
    return tensors, exact


def test_a_checkpoint_that_is_quantized_already(ctx):
    ctx.format = Transposed()
    layer = Linear(ctx, Matrix(ctx, [("q", 6), ("k", 3)], 32, bias=True))
    tensors, exact = stored([("q", 6), ("k", 3)], 32)
    biases = {"q.bias": torch.randn(6), "k.bias": torch.randn(3)}
    for name, tensor in (tensors | biases).items():
        ctx.weights.feed(name, tensor)
    ctx.weights.check_complete()
    x = torch.randn(4, 32)
    wanted = torch.cat([x @ exact[n].T + biases[f"{n}.bias"] for n in "qk"], 1)
    error = (layer(x) - wanted).norm() / wanted.norm()
    assert 0 < error < 0.02  # activations have eight bits, too


@pytest.mark.parametrize("side", ["outputs", "inputs"])
def test_ranks_keep_their_part_whatever_the_axis(ctx, side):
    tensors, exact = stored([("w", 8)], 32)
    x = torch.randn(4, 32)
    summed = []
    for rank in range(2):
        own = BuildContext(ctx.selector, "float32", "float32", 4, 32, Transposed(), rank, 2)
        split = own.split("things", Section(8 if side == "outputs" else 32))
        layer = Linear(own, Matrix(own, [("w", 8)], 32, **{side: split}))
        for name, tensor in tensors.items():
            own.weights.feed(name, tensor)
        [(begin, end)] = split.ranges
        summed.append(layer(x if side == "outputs" else x[:, begin:end]))
    y = torch.cat(summed, 1) if side == "outputs" else summed[0] + summed[1]
    wanted = x @ exact["w"].T
    assert (y - wanted).norm() / wanted.norm() < 0.02


def test_types_are_the_formats(ctx):
    ctx.format = Transposed()
    Linear(ctx, Matrix(ctx, [("w", 8)], 4))
    with pytest.raises(CheckpointError, match=r"qweight is of type float32, but int8"):
        ctx.weights.feed("w.qweight", torch.zeros(4, 8))


def test_a_layer_may_stay_plain_in_a_quantized_checkpoint(ctx):
    ctx.format = Transposed()
    Linear(ctx, Matrix(ctx, [("plain", 8)], 4))
    assert list(ctx.weights.expected) == ["plain.weight"]


@pytest.mark.parametrize("size", [1, 2])
def test_matrices_of_one_product_in_several_forms_become_plain(ctx, size):
    """Each is read as it is stored; x keeps its type."""
    sizes, bias = [("plain", 8), ("w", 4)], torch.randn(4)
    tensors, exact = stored(sizes[1:], 32)
    tensors |= {"plain.weight": torch.randn(8, 32), "plain.bias": torch.randn(8), "w.bias": bias}
    x, found = torch.randn(3, 32), []
    for rank in range(size):
        own = BuildContext(ctx.selector, "float32", "float32", 4, 32, Transposed(), rank, size)
        split = own.split("things", Section(8), Section(4))
        layer = Linear(own, Matrix(own, sizes, 32, bias=True, outputs=split))
        for _ in range(2):  # the second time as new weights
            for name, tensor in tensors.items():
                own.weights.feed(name, tensor)
        found.append(layer(x).split([8 // size, 4 // size], 1))
    first = x @ tensors["plain.weight"].T + tensors["plain.bias"]
    wanted = [first, x @ exact["w"].T + bias]
    for part, correct in zip(zip(*found, strict=True), wanted, strict=True):
        torch.testing.assert_close(torch.cat(part, 1), correct, rtol=1e-5, atol=1e-4)


class Mixed(OnlineFormat):
    """One matrix of two bits, and others of four, as mixed GPTQ has them."""

    online = False

    def storage(self, layer, shape):
        values = (-2, -1, 0, 1) if layer == "two" else None
        return Storage(QuantSpec("int4", "group", 16, values=values))


@pytest.mark.parametrize(("names", "few"), [(("two", "four"), None), (("two",), (-2, -1, 0, 1))])
def test_few_values_and_many_are_one_form(ctx, names, few):
    ctx.format = Mixed()
    matrix = Matrix(ctx, [(name, 8) for name in names], 32)
    assert matrix.spec.weight == QuantSpec("int4", "group", 16, values=few)


def test_a_share_counts_its_rows():
    assert Share((slice(2, 5), slice(9, 10)), slice(0, 4), padding=2).num_rows == 6


def test_a_tensor_is_padded_with_zeros():
    spec = TensorSpec((3, 2), ((slice(1, 3), slice(0, 1)),), padding=1)
    pieces = spec.keep(torch.ones(3, 2))
    assert [tuple(p.shape) for p in pieces] == [(2, 1), (1, 2)]


class Old:
    def operands(self, layer_name):
        return None, None


@pytest.mark.parametrize(
    ("found", "said"), [(Old(), "hook API 1"), (object(), "not derive from hotshoe")]
)
def test_what_is_no_format_is_refused_by_name(found, said):
    with pytest.raises(PluginError, match=f"method mine cannot be used: .*{said}"):
        checked_format(found, "mine")
    assert checked_format(OnlineFormat(), "mine").storage("any", (1, 1)) is None
