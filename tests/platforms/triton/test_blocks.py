"""8-bit floats with scales by block against float64, and x quantized as core's reference does."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.layers.linear import input_quant_of
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import plain_weight, quantize_rows, quantize_weight
from hotshoe_triton import blocks
from hotshoe_triton.device import ARCHS, OCP
from hotshoe_triton.tuning import LinearConfig

GROUPS = QuantSpec("fp8_e4m3", "group", 128, dynamic=True)
SPEC = LinearSpec(384, 200, "float32", weight=blocks.WEIGHT, activation=GROUPS)
SMALL = LinearConfig("blocks", 32, 128, 1, 4, 2)
#: Relative errors of whole results: sums in float32, then the type of the results.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-3, "float16": 5e-4}


@pytest.fixture(autouse=True)
def _multiplies_8_bit_floats(facts: DeviceFacts) -> None:
    if ARCHS[facts.arch].fp8 != OCP:
        pytest.skip(f"{facts.arch} does not multiply {OCP}")


def stored(
    spec: LinearSpec, rng: torch.Generator, sizes: tuple[int, ...] = (128, 72)
) -> dict[str, list[torch.Tensor]]:
    """Return what a checkpoint holds, in parts of so many rows."""

    def randoms(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=rng.device)

    columns = spec.in_features // 128
    made = {
        "weight": [
            (100 * randoms(n, spec.in_features)).clamp(-448, 448).to(torch.float8_e4m3fn)
            for n in sizes
        ],
        "weight_scale": [randoms(-(-n // 128), columns).abs() + 0.1 for n in sizes],
    }
    return made | ({"bias": [1000 * randoms(n) for n in sizes]} if spec.bias else {})


def rows(spec: LinearSpec, count: int, rng: torch.Generator) -> torch.Tensor:
    wide = torch.randn(count, spec.in_features + 16, generator=rng, device=rng.device)
    return wide.to(getattr(torch, spec.dtype))[:, : spec.in_features]


def product(
    spec: LinearSpec,
    tensors: dict[str, list[torch.Tensor]],
    operation: blocks.Linear,
    x: torch.Tensor,
) -> torch.Tensor:
    """Multiply x, as it was quantized, in float64: devices round ties of a quotient differently."""
    values, scale = operation._quantized(x)
    wide = values.double() * scale.T.double().repeat_interleave(128, 1)
    if "weight_scale" not in tensors:
        made = [quantize_weight(part, spec.weight) for part in tensors["weight"]]
        matrix = torch.cat([v.double() * s.double().repeat_interleave(128, 1) for v, s in made])
    else:
        matrix = plain_weight(replace(spec, dtype="float32"), tensors).double()
    bias = torch.cat(tensors["bias"]).to(getattr(torch, spec.dtype)).double() if spec.bias else 0
    return wide @ matrix.T + bias


def check(
    spec: LinearSpec,
    tensors: dict[str, list[torch.Tensor]],
    count: int,
    facts: DeviceFacts,
    rng: torch.Generator,
    config: LinearConfig = SMALL,
) -> blocks.Linear:
    assert blocks.supports(spec, facts).accepted
    actual = blocks.Linear(spec, facts)
    for block in blocks.ROW_BLOCKS:
        actual.configure(block, config)
    actual.load(tensors)
    x = rows(spec, count, rng)
    wanted = product(spec, tensors, actual, x)
    for _ in range(2):  # counters must be zero again
        y = actual(x)
        assert (y.dtype, y.is_contiguous()) == (getattr(torch, spec.out_dtype or spec.dtype), True)
        assert (y.double() - wanted).norm() / wanted.norm() < TOLERANCE[spec.dtype]
    return actual


@pytest.mark.parametrize(
    ("dtype", "count"), [(d, n) for d in TOLERANCE for n in (1, 17)] + [("bfloat16", 66)]
)
def test_types(facts: DeviceFacts, dtype: str, count: int, rng: torch.Generator) -> None:
    spec = replace(SPEC, dtype=dtype, bias=dtype == "bfloat16")
    operation = check(spec, stored(spec, rng), count, facts, rng)
    assert operation.state()["weight_scale"].shape == (3, 2)


@pytest.mark.parametrize(("count", "split"), [(2, 2), (2, 3), (20, 2)])
def test_splits_add_in_order(
    facts: DeviceFacts, split: int, count: int, rng: torch.Generator
) -> None:
    operation = check(SPEC, stored(SPEC, rng), count, facts, rng, replace(SMALL, split_k=split))
    x = rows(SPEC, count, rng)
    assert torch.equal(operation(x), operation(x))


def test_blocks_begin_anew_with_each_part(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = check(SPEC, stored(SPEC, rng, (72, 128)), 3, facts, rng)
    assert operation.state()["weight_scale"].shape == (3, 200)


def test_tiles_of_many_rows_are_all_computed(
    facts: DeviceFacts, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ROW_BLOCKS", (16,))
    spec = replace(SPEC, in_features=128, out_features=72, out_dtype="float32", dtype="bfloat16")
    check(spec, stored(spec, rng, (72,)), 16 * 9 + 5, facts, rng, replace(SMALL, block_n=64))


def test_plain_weights_are_quantized_while_they_load(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = replace(SPEC, weight=replace(blocks.WEIGHT, online=True))
    made = torch.randn(200, 384, generator=rng, device=rng.device)
    operation = check(spec, {"weight": [made]}, 3, facts, rng)
    assert operation.nbytes() == 200 * 384 + 2 * 3 * 4


def test_x_may_come_quantized(facts: DeviceFacts, rng: torch.Generator) -> None:
    """With scales of any strides; those that a norm writes are taken as they lie."""
    operation = check(SPEC, stored(SPEC, rng), 3, facts, rng)
    assert input_quant_of(SPEC, operation) == GROUPS
    x = rows(SPEC, 3, rng)
    values, scale = operation._quantized(x)
    wanted = operation(x)
    assert torch.equal(operation((values, scale.T)), wanted)
    assert torch.equal(operation((values, scale.T.contiguous())), wanted)
    more, scales = operation._quantized((values, scale.T), 4)
    assert more.shape == (4, 384) and scales.shape == (3, 4) and scales.is_contiguous()
    assert torch.equal(scales[:, :3], scale)


def test_rows_are_quantized_as_the_reference_does(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = blocks.Linear(SPEC, facts)
    x = rows(SPEC, 5, rng)
    x[1, :128], x[2, 130] = 0, torch.nan
    values, scale = operation._quantized(x)
    expected, scales = quantize_rows(x.reshape(-1, 128), "fp8_e4m3")
    torch.testing.assert_close(scale.T.flatten(), scales, rtol=1e-6, atol=0, equal_nan=True)
    kept = ~scales.isnan()
    assert torch.equal(values.float().view(-1, 128)[kept], expected.float()[kept])


def test_a_row_that_is_not_finite_spoils_no_other(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = check(SPEC, stored(SPEC, rng), 3, facts, rng)
    x = rows(SPEC, 3, rng)
    expected = operation(x)
    x[1, 5] = torch.nan
    y = operation(x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], expected[[0, 2]])


def test_loading_again_writes_where_it_lies(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = check(SPEC, stored(SPEC, rng), 2, facts, rng)
    addresses = {name: held.data_ptr() for name, held in operation.state().items()}
    operation.load(stored(SPEC, rng))
    assert {name: held.data_ptr() for name, held in operation.state().items()} == addresses


def test_empty_batches_and_nothing_held(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = blocks.Linear(SPEC, facts)
    assert operation.state() == {}
    operation.load(stored(SPEC, rng))
    assert operation(rows(SPEC, 0, rng)).shape == (0, 200)


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({"activation": None}, "sm_90", "are not 8-bit floats with scales of 128x128"),
        ({"activation": replace(GROUPS, group_size=64)}, "sm_90", "are not 8-bit floats"),
        ({"weight": replace(blocks.WEIGHT, block_shape=(64, 128))}, "sm_90", "are not 8-bit"),
        ({"in_features": 200}, "sm_90", "rows of 200"),
        ({"out_dtype": "int8"}, "sm_90", "results of type int8"),
        ({}, "sm_80", "sm_80 does not multiply float8_e4m3fn"),
        ({}, "gfx942", "gfx942 does not multiply float8_e4m3fn"),
        ({}, "sm_70", "architecture sm_70"),
    ],
)
def test_refusals(changes: dict[str, object], arch: str, reason: str) -> None:
    verdict = blocks.supports(replace(SPEC, **changes), device_facts(arch))
    assert not verdict.accepted
    assert reason in verdict.reason
