"""Matrix products against core's reference: every kernel, splits, tails, formats, strides."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear as PlainLinear
from hotshoe.slots.reference.linear import quantize_weight
from hotshoe_triton import linear
from hotshoe_triton.quantize import QuantizeRows, format_of
from hotshoe_triton.tuning import BUCKETS, LIBRARY, LinearConfig

SPEC = LinearSpec(96, 40, "float32")
GEMV = LinearConfig("gemv", 4, 32, 1, 4, 1)
SKINNY = LinearConfig("skinny", 16, 32, 1, 4, 2)
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


def quantized(format: str, online: bool = True) -> dict[str, object]:
    return {
        "weight": QuantSpec(format, "channel", online=online),
        "activation": QuantSpec(format, "token", dynamic=True),
    }


def table(spec: LinearSpec, config: LinearConfig) -> linear.Table:
    return {(spec.out_features, spec.in_features, bucket): config for bucket in BUCKETS}


def weights(spec: LinearSpec, rng: torch.Generator) -> dict[str, list[torch.Tensor]]:
    kind = getattr(torch, spec.dtype)
    sizes = (spec.out_features - 16, 16)
    made = [torch.randn(n, spec.in_features, generator=rng, device=rng.device) for n in sizes]
    tensors = {"weight": [part.to(kind) for part in made]}
    if spec.bias:
        made = [torch.randn(n, generator=rng, device=rng.device) for n in sizes]
        tensors["bias"] = [part.to(kind) for part in made]
    return tensors


def rows(spec: LinearSpec, count: int, rng: torch.Generator) -> torch.Tensor:
    wide = torch.randn(count, spec.in_features + 16, generator=rng, device=rng.device)
    return wide.to(getattr(torch, spec.dtype))[:, : spec.in_features]


def check(
    spec: LinearSpec, config: LinearConfig, count: int, facts: DeviceFacts, rng: torch.Generator
) -> None:
    assert linear.supports(spec, facts).accepted
    tensors = weights(spec, rng)
    actual = linear.Linear(spec, facts, table(spec, config))
    expected = PlainLinear(spec, facts)
    actual.load(tensors)
    expected.load(tensors)
    x = rows(spec, count, rng)
    for _ in range(2):  # counters must be zero again
        y = actual(x)
        tolerance = TOLERANCE[spec.dtype]
        torch.testing.assert_close(y, expected(x), rtol=tolerance, atol=tolerance * 8)
        assert y.is_contiguous()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "config",
    [GEMV, replace(GEMV, split_k=3), replace(GEMV, block_k=64, stages=2), SKINNY, LIBRARY],
    ids=str,
)
def test_one_row(
    facts: DeviceFacts, config: LinearConfig, bias: bool, rng: torch.Generator
) -> None:
    check(replace(SPEC, bias=bias), config, 1, facts, rng)


@pytest.mark.parametrize("count", [2, 5, 16, 33, 64])
@pytest.mark.parametrize(
    "config", [SKINNY, replace(SKINNY, split_k=2), replace(SKINNY, block_n=32, block_k=64)], ids=str
)
def test_few_rows(
    facts: DeviceFacts, config: LinearConfig, count: int, rng: torch.Generator
) -> None:
    check(replace(SPEC, bias=True), config, count, facts, rng)


@pytest.mark.parametrize("count", [1, 7])
def test_half_precision_in_and_float32_out(
    facts: DeviceFacts, count: int, rng: torch.Generator
) -> None:
    for dtype in ("bfloat16", "float16"):
        spec = replace(SPEC, dtype=dtype, out_dtype="float32")
        check(spec, GEMV if count == 1 else SKINNY, count, facts, rng)


@pytest.mark.parametrize("count", [1, 3, 70])
@pytest.mark.parametrize("split", [1, 2])
def test_int8_is_exact_but_for_its_scales(
    facts: DeviceFacts, count: int, split: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, bias=True, **quantized("int8"))
    check(spec, replace(SKINNY, split_k=split), count, facts, rng)


@pytest.mark.parametrize("count", [3, 70])
def test_fp8_multiplies_what_was_quantized(
    facts: DeviceFacts, count: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, **quantized("fp8_e4m3"))
    if not linear.supports(spec, facts).accepted:
        pytest.skip(f"{facts.arch} has no fp8")
    operation = linear.Linear(spec, facts, table(spec, SKINNY))
    operation.load(weights(spec, rng))
    x = rows(spec, count, rng)
    values, scale = QuantizeRows(spec.in_features, format_of("fp8_e4m3", facts), facts)(x)
    weight = operation._weight.float() * operation._scale[:, None]
    expected = (values.float() * scale[:, None]) @ weight.T
    torch.testing.assert_close(operation(x), expected, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(operation.apply(x, (values, scale)), operation(x))


@pytest.mark.parametrize("config", [GEMV, SKINNY], ids=str)
def test_weights_and_rows_far_apart_need_64_bits(
    facts: DeviceFacts, config: LinearConfig, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype="bfloat16")
    operation = linear.Linear(spec, facts, table(spec, config))
    operation.load(weights(spec, rng))
    x = rows(spec, 1 if config is GEMV else 3, rng)
    expected = operation(x)
    operation._weight = far_apart(operation._weight)
    operation._launches = [operation._launch(config, bucket) for bucket in BUCKETS]
    torch.testing.assert_close(operation(x), expected)
    if config is SKINNY:
        torch.testing.assert_close(operation(far_apart(x)), expected)


def test_quantized_checkpoints_keep_their_scales(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, **quantized("int8", online=False))
    values = torch.randint(-127, 128, (40, 96), dtype=torch.int8, generator=rng, device=rng.device)
    scale = torch.rand(40, 1, generator=rng, device=rng.device)
    operation = linear.Linear(spec, facts)
    operation.load({"weight": [values[:30], values[30:]], "weight_scale": [scale[:30], scale[30:]]})
    x = rows(spec, 4, rng)
    expected = x @ (values.float() * scale).T
    torch.testing.assert_close(operation(x), expected, rtol=2e-2, atol=20.0)
    assert operation.nbytes() == 40 * 96 + 40 * 4


@pytest.mark.parametrize("changes", [{}, quantized("int8")], ids=["plain", "int8"])
def test_defaults_and_empty_batches(
    facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator
) -> None:
    spec = replace(SPEC, **changes)
    operation, expected = linear.Linear(spec, facts), PlainLinear(spec, facts)
    tensors = weights(spec, rng)
    operation.load(tensors)
    expected.load(tensors)
    for count in (1, 2, 66):
        x = rows(spec, count, rng)
        torch.testing.assert_close(operation(x), expected(x), rtol=1e-3, atol=1e-3)
    assert operation(rows(spec, 0, rng)).shape == (0, 40)


FIXED = {
    name: {"weight": QuantSpec(name, "channel"), "activation": QuantSpec(name, "tensor")}
    for name in ("int8", "fp8_e4m3")
}


@pytest.mark.parametrize("count", [1, 5, 70])
@pytest.mark.parametrize("format", FIXED)
def test_stored_scales_of_x(
    facts: DeviceFacts, format: str, count: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, bias=True, **FIXED[format])
    if not linear.supports(spec, facts).accepted:
        pytest.skip(f"{facts.arch} has no fp8")
    tensors = weights(spec, rng)
    made = [quantize_weight(part, spec.weight) for part in tensors["weight"]]
    tensors["weight"], tensors["weight_scale"] = map(list, zip(*made, strict=True))
    # Powers of two, by which every device divides without rounding.
    largest = {"int8": 2**-6, "fp8_e4m3": 2**-8}[format]
    tensors["input_scale"] = [torch.tensor(s, device=rng.device) for s in (largest / 2, largest)]
    actual = linear.Linear(spec, facts, table(spec, SKINNY))
    expected = PlainLinear(spec, facts)
    actual.load(tensors)
    expected.load(tensors)
    x = rows(spec, count, rng)  # some of it beyond the scale's range
    # Tensor cores add up products of fp8 with fewer bits than float32 has.
    inexact = format == "fp8_e4m3" and count == 70
    tolerance = 5e-3 * expected(x).std().item() if inexact else 1e-3
    torch.testing.assert_close(actual(x), expected(x), rtol=1e-4, atol=tolerance)
    x[0, 7] = torch.nan
    assert actual(x)[0].isnan().all()
    assert actual(x)[1:].isfinite().all()
    actual.load(tensors | {"input_scale": [torch.tensor(0.1, device=rng.device)] * 2})
    assert actual.state()["input_scale"].tolist() == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({"dtype": "float64"}, "sm_90", "element type float64"),
        ({"in_features": 100}, "sm_90", "rows of 100"),
        ({"out_dtype": "int8"}, "sm_90", "results of type int8"),
        (quantized("fp8_e4m3"), "sm_80", "sm_80 does not multiply fp8_e4m3"),
        (FIXED["fp8_e4m3"], "gfx942", "gfx942 has no float8_e4m3fn that x has its scale for"),
        (quantized("mxfp4"), "sm_90", "neither plain nor 8 bits"),
        ({"weight": QuantSpec("int8", "channel")}, "sm_90", "neither plain nor 8 bits"),
        ({}, "sm_70", "architecture sm_70"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], arch: str, reason: str) -> None:
    verdict = linear.supports(replace(SPEC, **changes), replace(facts, arch=arch))
    assert reason in verdict.reason
