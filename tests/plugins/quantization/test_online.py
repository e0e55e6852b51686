"""The methods' operands, and what they do to a linear layer on the reference."""

import pytest
import torch

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, Linear, Matrix
from hotshoe.layers.wrapped import placed_format
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, QuantSpec, Selector
from hotshoe_quantization import online
from hotshoe_quantization.online import (
    RECIPE,
    STRIP,
    fp8,
    fp8_block,
    fp8_mixed,
    int4,
    int4_64,
    int4_128,
    int4_mixed,
    int8,
    int8_mixed,
    int8_weights,
    quantized_floats,
    quantized_groups,
    round_floats,
)

METHODS = [(int8, "int8", 0.03), (fp8, "fp8_e4m3", 0.06)]


@pytest.mark.parametrize(("method", "format", "_"), METHODS)
def test_the_form_of_any_layer(method, format, _):
    for name in ("model.layers.0.self_attn.q_proj", "anything"):
        stored = method().storage(name, (8, 4))
        assert stored.weight == QuantSpec(format, "channel", online=True)
        assert stored.activation == QuantSpec(format, "token", dynamic=True)
        assert stored.weight.symmetric and stored.activation.symmetric
        assert not stored.weight.dynamic


@pytest.mark.parametrize(("method", "_", "limit"), METHODS)
def test_a_layer_quantized_while_loading(method, _, limit):
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    ctx = BuildContext(selector, "float32", "float32", 4, 16, format=method())
    layer = Linear(ctx, Matrix(ctx, [("a", 24), ("b", 8)], 64))
    a, b, x = torch.randn(24, 64), torch.randn(8, 64), torch.randn(5, 64)
    ctx.weights.feed("b.weight", b)
    ctx.weights.feed("a.weight", a)
    exact = x @ torch.cat((a, b)).T
    error = ((layer(x) - exact).norm() / exact.norm()).item()
    assert 1e-4 < error < limit
    (count,) = ctx.weight_bytes
    assert count() == 32 * 64 + 32 * 4


ALONE = [(int8_weights, 0.01, 4), (int4_64, 0.12, 8), (int4, 0.12, 16)]


@pytest.mark.parametrize(("method", "limit", "scale_bytes"), ALONE)
def test_weights_alone(method, limit, scale_bytes):
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    ctx = BuildContext(selector, "float32", "float32", 4, 16, format=method())
    layer = Linear(ctx, Matrix(ctx, [("a", 32)], 64))
    weight, x = torch.randn(32, 64), torch.randn(5, 64)
    ctx.weights.feed("a.weight", weight)
    exact = x @ weight.T
    error = ((layer(x) - exact).norm() / exact.norm()).item()
    assert limit / 10 < error < limit
    assert ctx.weight_bytes[0]() == 32 * (64 + scale_bytes)
    assert layer.input_quant is None


@pytest.mark.parametrize(("method", "format"), [(int8_mixed, "int8"), (fp8_mixed, "fp8_e4m3")])
def test_mixed_keeps_x_where_it_would_lose_much(method, format):
    def activation(name: str) -> QuantSpec | None:
        stored = method().storage(f"model.layers.3.{name}", (8, 4))
        fitted = stored.activation is not None and format == "fp8_e4m3"
        kind = "int8" if stored.activation is None else format
        assert stored.weight == QuantSpec(kind, "channel", online=not fitted)
        return stored.activation

    token = QuantSpec(format, "token", dynamic=True)
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj"):
        assert activation(name) == token
    assert activation("self_attn.o_proj") == (token if format == "int8" else None)
    for name in ("self_attn.q_proj", "self_attn.qkv_proj", "mlp.down_proj", "mixer.in_proj", "x"):
        assert activation(name) is None
    assert activation("mlp.experts.7.gate_proj") is activation("mlp.experts.7.down_proj") is None


def test_rows_of_floats_have_the_scales_that_err_least(monkeypatch):
    weight = torch.randn(40, 96) * torch.rand(40, 1)
    weight[3] = 0
    monkeypatch.setattr(online, "STRIP", 96 * 7)
    values, scales = quantized_floats(weight)
    assert values.dtype == torch.float8_e4m3fn and scales.shape == (40, 1)
    least = weight.abs().amax(1, keepdim=True) / 448
    kept = (values.float() * scales - weight).norm(dim=1)
    for factor in (1.0, 2**0.25, 2**0.5, 2**0.875):
        scale = least.where(least > 0, 1.0) * factor
        tried = (weight / scale).to(torch.float8_e4m3fn).float() * scale
        assert (kept <= (tried - weight).norm(dim=1) * (1 + 1e-4) + 1e-9).all()
    assert not values[3].float().any() and scales[3] == 1


def test_floats_are_rounded_as_a_cast_does():
    ends = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    around = [torch.nextafter(ends, torch.tensor(end)) for end in (0.0, 448.0)]
    halves = (ends[1:] + ends[:-1]) / 2
    drawn = 448 * torch.rand(4096) * torch.rand(4096) ** 8
    sizes = torch.cat([ends, *around, halves, drawn])
    wanted = sizes.to(torch.float8_e4m3fn).float()
    round_floats(sizes, torch.empty_like(sizes))
    assert torch.equal(sizes, wanted)


def test_only_floats_are_fitted_while_loading():
    method, given = fp8_mixed(), {"weight": [torch.randn(4, 64)], "bias": [torch.randn(4)]}
    made = method.canonical("model.layers.0.mlp.up_proj", given)
    assert made["bias"] is given["bias"] and made["weight_scale"][0].shape == (4, 1)
    for name in ("self_attn.q_proj", "mlp.down_proj", "mlp.experts.3.up_proj"):
        layer = f"model.layers.0.{name}"
        assert method.recipe(layer) is None and method.canonical(layer, given) is given


def test_floats_are_fitted_where_their_weights_go():
    there = DeviceFacts("plain", "meta", "", "arch7", 1 << 30, 1)  # which keeps no numbers
    method, layer = placed_format(fp8_mixed(), there), "model.layers.0.mlp.up_proj"
    made = method.canonical(layer, {"weight": [torch.randn(4, 64)]})
    assert [made[name][0].device.type for name in ("weight", "weight_scale")] == ["meta", "meta"]
    assert method.recipe(layer).endswith("on meta arch7")


def test_blocks_of_floats_are_those_of_published_checkpoints():
    stored = fp8_block().storage("model.layers.3.mlp.up_proj", (8, 4))
    assert stored.weight == QuantSpec("fp8_e4m3", "block", block_shape=(128, 128), online=True)
    assert stored.activation == QuantSpec("fp8_e4m3", "group", 128, dynamic=True)
    experts = fp8_block().storage("model.layers.3.mlp.experts.0.up_proj", (8, 4))
    assert (experts.weight, experts.activation) == (stored.weight, None)


def test_mixed_groups_keep_eight_bits_where_four_lose_much():
    method, shape = int4_mixed(), (8, 64)
    group = QuantSpec("int4", "group", 64, symmetric=False)
    weights = {"weight": [torch.randn(8, 64)]}
    for name in ("mlp.gate_proj", "mlp.up_proj", "self_attn.o_proj", "mlp.experts.7.down_proj"):
        assert method.storage(f"model.layers.3.{name}", shape).weight == group
        assert "weight_scale" in method.canonical(f"model.layers.3.{name}", weights)
    for name in ("self_attn.q_proj", "self_attn.qkv_proj", "mlp.down_proj", "mixer.in_proj", "x"):
        kept = method.storage(f"model.layers.3.{name}", (8, 50))
        assert kept.weight == QuantSpec("int8", "channel", online=True) and kept.activation is None
        assert method.canonical(f"model.layers.3.{name}", weights) is weights


def test_groups_divide_the_inputs():
    assert int4_128().storage("a", (8, 256)).weight.group_size == 128
    with pytest.raises(ConfigError, match="groups of 128 do not divide the 192 inputs of a"):
        int4_128().storage("a", (8, 192))


def test_another_device_fits_the_same_without_threads(monkeypatch):
    weight = torch.randn(64, 128)
    wanted = quantized_groups(weight, 32)
    monkeypatch.setattr(online, "HOST", None)
    monkeypatch.setattr(online, "STRIP_THERE", 128 * 10)
    for made, expected in zip(quantized_groups(weight, 32), wanted, strict=True):
        assert torch.equal(made, expected)


@pytest.mark.parametrize("offset", [0.0, 3.0, -3.0])
def test_four_bits_of_what_has_four_bits_are_the_same(offset):
    steps = torch.randint(0, 16, (8, 64))
    steps[:, 0], steps[:, 63] = 0, 15
    weight = (steps * 0.25 + offset) * (torch.rand(8, 1) + 0.5)
    weight[3] = 0.7  # all alike
    weight[4] = 0.0
    values, scale, zero = quantized_groups(weight, 64)
    assert values.min() >= 0 and values.max() <= 15
    torch.testing.assert_close((values - zero) * scale, weight, rtol=1e-4, atol=1e-5)


def test_lines_err_less_than_the_whole_range():
    weight = torch.randn(64, 256)
    weight[:, ::64] *= 6
    wide = weight.view(64, -1, 64)
    values, scale, zero = quantized_groups(weight, 64)
    dense = (values.view(64, -1, 64) - zero[..., None]) * scale[..., None]
    low, high = wide.aminmax(dim=2, keepdim=True)
    step = (high - low) / 15
    plain = ((wide - low) / step).round() * step + low
    error, worst = ((part - wide).square().sum(2) for part in (dense, plain))
    assert (error <= worst * 1.001).all()
    assert error.sum() < 0.9 * worst.sum()


def test_strips_are_put_together_in_order():
    weight = torch.randn(5, 64).repeat(STRIP // 128, 1)  # two strips and a half
    for part, other in zip(
        quantized_groups(weight, 32), quantized_groups(weight[:5], 32), strict=True
    ):
        assert torch.equal(part[-5:], other)


def test_other_numbers_need_another_recipe():
    # Kept weights are found by the recipe: who changes these numbers raises the number in RECIPE.
    weight = torch.arange(64).mul(37).remainder(101).sub(50).view(2, 32) / 64
    values, scales, zeros = quantized_groups(weight, 32)
    assert RECIPE == "four bits by lines, 2"
    assert ["".join(f"{v:x}" for v in row) for row in values.tolist()] == [
        "05b17d39e4a06c27d39f5b16c28e49f5",
        "b17d38e4a06b27d39f5a06c28d49f5b1",
    ]
    torch.testing.assert_close(scales, torch.tensor([0.1002671, 0.1010238]).view(2, 1))
    torch.testing.assert_close(zeros, torch.tensor([7.443177, 7.442333]).view(2, 1))
    values, scales = quantized_floats(weight)
    assert online.FLOAT_RECIPE == "8-bit floats by the best of 8 scales, 1"
    assert values.view(torch.uint8)[:, :4].tolist() == [[247, 232, 111, 244], [110, 245, 218, 114]]
    torch.testing.assert_close(scales, torch.tensor([0.00319826, 0.00313429]).view(2, 1))
    sizes = {make().recipe("model.layers.0.mlp.up_proj") for make in (int4, int4_64, int4_128)}
    assert sizes == {f"{RECIPE}, groups of {size}" for size in (32, 64, 128)}
    assert int4_mixed().recipe("model.layers.0.mlp.up_proj") == int4_64().recipe("any")
    assert int4_mixed().recipe("model.layers.0.mlp.down_proj") is None
