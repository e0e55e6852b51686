"""Layers of 8-bit checkpoints, and what becomes of x in them, counted out in float64."""

import pytest
import torch
from tests.plugins.quantization.writers import eight_bits
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Linear, Matrix, Section, Share
from hotshoe.layers.split import split_padded
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, QuantSpec, Selector
from hotshoe_quantization.elements import Elements
from hotshoe_quantization.stored import StoredFormat

FP8, INT8 = torch.float8_e4m3fn, torch.int8
WEIGHTS = [(form, per) for form in ("int8", "fp8_e4m3") for per in ("tensor", "channel", "block")]
PARTS = [("q", 64), ("k", 32), ("v", 33)]
INPUTS = 96


def context(weight: QuantSpec, activation: QuantSpec | None, **more) -> BuildContext:
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    stored = StoredFormat(lambda layer: Elements(weight, activation))
    return BuildContext(selector, "float32", "float32", 4, 16, format=stored, **more)


def steps(x: Tensor, kind: str) -> Tensor:
    """Round to int8, or to floats with three bits after the leading one, down to steps of 2^-9."""
    if kind == "int8":
        return x.round().clamp(-127, 127)
    x = x.clamp(-448, 448)
    exponent = torch.floor(torch.log2(x.abs().clamp(min=2.0**-6)))
    step = torch.exp2(exponent - 3)
    return (x / step).round() * step


def rounded(x: Tensor, quant: QuantSpec | None, scale: float) -> Tensor:
    x = x.double()
    if quant is None:
        return x
    top = 127 if quant.format == "int8" else 448
    if quant.granularity == "tensor":
        return steps(x / scale, quant.format) * scale
    width = quant.group_size or x.shape[1]
    parts = []
    for part in x.split(width, 1):
        largest = (part.abs().amax(1, keepdim=True).float() / top).double()
        parts.append(steps((part.float() / largest.float()).double(), quant.format) * largest)
    return torch.cat(parts, 1)


def activations(form: str) -> list[QuantSpec | None]:
    token = QuantSpec(form, "token", dynamic=True)
    group = QuantSpec(form, "group", 32, dynamic=True)
    return [None, token, group, QuantSpec(form, "tensor")]


@pytest.mark.parametrize(("form", "per"), WEIGHTS)
@pytest.mark.parametrize("which", range(4))
def test_stacked_matrices(form: str, per: str, which: int) -> None:
    activation = activations(form)[which]
    block = (32, 32) if per == "block" else None
    ctx = context(QuantSpec(form, per, block_shape=block), activation)
    layer = Linear(ctx, Matrix(ctx, PARTS, INPUTS))
    static = activation is not None and not activation.dynamic
    dense, scales = [], (0.011, 0.02, 0.007)
    kind = INT8 if form == "int8" else FP8
    for (name, rows), scale in zip(PARTS, scales, strict=True):
        quantize = eight_bits(kind, per, scale if static else None)
        tensors, plain = quantize(torch.randn(rows, INPUTS))
        dense.append(plain)
        for part, tensor in tensors.items():
            ctx.weights.feed(f"{name}.{part}", tensor)
    ctx.weights.check_complete()
    x = torch.randn(7, INPUTS)
    expected = rounded(x, activation, max(scales)) @ torch.cat(dense).double().T
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_ranks_have_their_scales(per: str) -> None:
    """Outputs are divided, and padded where they do not come out even."""
    tensors, dense = eight_bits(INT8, per)(torch.randn(10, 8))
    x, found = torch.randn(3, 8), []
    for rank in range(4):
        ctx = context(QuantSpec("int8", per), None, rank=rank, size=4)
        layer = Linear(ctx, Matrix(ctx, [("a", 10)], 8, outputs=split_padded(10, rank, 4)))
        for part, tensor in tensors.items():
            ctx.weights.feed(f"a.{part}", tensor)
        found.append(layer(x))
    whole = torch.cat(found, 1)
    torch.testing.assert_close(whole[:, :10], x @ dense.T)
    assert not whole[:, 10:].any()


def test_a_block_is_not_cut() -> None:
    scheme = Elements(QuantSpec("fp8_e4m3", "block", block_shape=(32, 32)))
    share = Share((slice(16, 48),), slice(0, 64))
    with pytest.raises(CheckpointError, match="smaller tensor_parallel_size"):
        scheme.tensors("a", (64, 64), share)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["weight_scale", "input_scale"])
def test_scales_are_finite(bad: float, which: str) -> None:
    ctx = context(QuantSpec("fp8_e4m3", "channel"), QuantSpec("fp8_e4m3", "tensor"))
    Linear(ctx, Matrix(ctx, [("a", 8)], 8))
    tensors, _ = eight_bits(FP8, "channel", 0.1)(torch.randn(8, 8))
    tensors[which][0] = bad
    last = tensors.popitem()
    for part, tensor in tensors.items():
        ctx.weights.feed(f"a.{part}", tensor)
    with pytest.raises(CheckpointError, match=rf"a\.{which}.* NaN or infinity"):
        ctx.weights.feed(f"a.{last[0]}", last[1])


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_scales_of_x_are_positive(bad: float) -> None:
    scheme = Elements(QuantSpec("int8", "channel"), QuantSpec("int8", "tensor"))
    scales = {"weight_scale": [torch.ones(8, 1)], "input_scale": [torch.tensor([bad])]}
    with pytest.raises(CheckpointError, match=r"a\.input_scale, .* is not positive"):
        scheme.canonical("a", {"weight": [torch.ones(8, 8, dtype=torch.int8)]} | scales)


def test_scales_of_another_shape_are_refused() -> None:
    ctx = context(QuantSpec("fp8_e4m3", "channel"), None)
    Linear(ctx, Matrix(ctx, [("a", 8)], 8, outputs=ctx.split("rows", Section(8))))
    with pytest.raises(CheckpointError, match=r"a\.weight_scale has shape \[4\]"):
        ctx.weights.feed("a.weight_scale", torch.ones(4))
    with pytest.raises(CheckpointError, match="of type int8, but float8_e4m3fn is expected"):
        ctx.weights.feed("a.weight", torch.ones(8, 8, dtype=torch.int8))


def test_integers_of_more_than_four_bits() -> None:
    weight = torch.tensor([[0, 8]], dtype=torch.int8)
    scheme = Elements(QuantSpec("int4", "channel"))
    with pytest.raises(CheckpointError, match=r"a\.weight.* beyond -8 to 7"):
        scheme.canonical("a", {"weight": [weight], "weight_scale": [torch.ones(1, 1)]})
