"""Packed integers against core's reference, which computes in float64: forms, sizes, splits."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import CheckpointError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear as PlainLinear
from hotshoe_triton import groups
from hotshoe_triton.tuning import LinearConfig

#: More rows than tiles have.
MANY = groups.LARGE_BLOCKS["hopper"][-1]
GROUPED = QuantSpec("int4", "group", 32)
SPEC = LinearSpec(288, 40, "float32", weight=GROUPED)
#: Relative errors of whole results; weights less fractions of zero points are rounded, too.
TOLERANCE = {"float32": 1e-6, "bfloat16": 8e-3, "float16": 1e-3}
FORMS = {
    "group": GROUPED,
    "zero points": replace(GROUPED, symmetric=False),
    "channel": QuantSpec("int4", "channel"),
    "channel with zero points": QuantSpec("int4", "channel", symmetric=False),
    "int8": QuantSpec("int8", "group", 32),
    "int8 with zero points": QuantSpec("int8", "group", 32, symmetric=False),
    "int8 by channel": QuantSpec("int8", "channel"),
    "int8 strips": QuantSpec("int8", "group", 16, bits=6),
    "strips with zero points": QuantSpec("int4", "group", 16, symmetric=False),
    "order": replace(GROUPED, permuted=True),
    "floats": QuantSpec("fp4_e2m1", "group", 32),
    "floats by bytes": QuantSpec("fp4_e2m1", "group", 16),
}


def stored(
    spec: LinearSpec, rng: torch.Generator, low: int | None = None, fractions: bool = False
) -> dict[str, list[torch.Tensor]]:
    """Return what a checkpoint holds, in two parts; integers begin at `low`."""
    quant = spec.weight
    half = 1 << (groups.BITS[quant.format] - 1)
    low = -half if low is None else low
    columns = spec.in_features // (quant.group_size or spec.in_features)

    def integers(*shape: int) -> torch.Tensor:
        if quant.format == "fp4_e2m1":
            sizes = torch.tensor(groups.DOUBLED, device=rng.device)
            signed = torch.cat([sizes, -sizes])
            return signed[torch.randint(0, 16, shape, generator=rng, device=rng.device)]
        return torch.randint(low, low + 2 * half, shape, generator=rng, device=rng.device)

    def randoms(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=rng, device=rng.device)

    sizes = (spec.out_features - 16, 16)
    tensors = {
        "weight": [integers(n, spec.in_features).to(torch.int8) for n in sizes],
        "weight_scale": [randoms(n, columns) + 0.1 for n in sizes],
    }
    if groups.scaled_by_bytes(quant):
        # So small that sums of a few thousand products stay finite in float16.
        wholes = tensors["weight_global_scale"] = [(randoms(1) + 0.1) / 16 for _ in sizes]
        tensors["weight_scale"] = [
            (448 * (2 * share - 1.2)).to(torch.float8_e4m3fn).float() * whole / 2
            for share, whole in zip(tensors["weight_scale"], wholes, strict=True)
        ]
    if not quant.symmetric:
        zeros = [integers(n, columns).to(torch.int16) for n in sizes]
        tensors["weight_zero_point"] = [
            zero + randoms(*zero.shape) if fractions else zero for zero in zeros
        ]
    if quant.permuted:
        order = torch.randperm(spec.in_features, generator=rng, device=rng.device)
        tensors["weight_order"] = [order.int()] * 2
    if spec.bias:
        tensors["bias"] = [randoms(n).to(getattr(torch, spec.dtype)) for n in sizes]
    return tensors


def rows(spec: LinearSpec, count: int, rng: torch.Generator) -> torch.Tensor:
    wide = torch.randn(count, spec.in_features + 16, generator=rng, device=rng.device)
    return wide.to(getattr(torch, spec.dtype))[:, : spec.in_features]


def check(
    spec: LinearSpec,
    tensors: dict[str, list[torch.Tensor]],
    count: int,
    facts: DeviceFacts,
    rng: torch.Generator,
    config: LinearConfig | None = None,
) -> groups.Linear:
    assert groups.supports(spec, facts).accepted
    actual, expected = groups.Linear(spec, facts), PlainLinear(spec, facts)
    if config:
        for block in groups.row_blocks(facts):
            actual.configure(block, config)
    actual.load(tensors)
    expected.load(tensors)
    x = rows(spec, count, rng)
    wanted = expected(x).double()
    for _ in range(2):  # counters must be zero again
        y = actual(x)
        assert (y.dtype, y.is_contiguous()) == (expected(x).dtype, True)
        error = (y.double() - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[spec.dtype]
    return actual


@pytest.mark.parametrize("count", [1, MANY + 1])
@pytest.mark.parametrize("weight", FORMS.values(), ids=FORMS)
def test_forms(facts: DeviceFacts, weight: QuantSpec, count: int, rng: torch.Generator) -> None:
    spec = replace(SPEC, weight=weight, bias=True)
    check(spec, stored(spec, rng), count, facts, rng)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("weight", FORMS.values(), ids=FORMS)
def test_a_matrix_takes_what_is_said(
    facts: DeviceFacts, weight: QuantSpec, dtype: str, rng: torch.Generator
) -> None:
    spec = replace(SPEC, in_features=256, out_features=512, dtype=dtype, weight=weight)
    operation = groups.Linear(spec, facts)
    operation.load(stored(spec, rng))
    said = groups.weight_bytes(spec, facts)
    assert said <= operation.nbytes() <= 1.04 * said


@pytest.mark.parametrize("count", [1, 2, MANY + 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("low", "fractions"), [(0, False), (0, True), (-8, False)])
def test_zero_points_of_all_writers(
    facts: DeviceFacts, dtype: str, low: int, fractions: bool, count: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype=dtype, weight=FORMS["zero points"])
    check(spec, stored(spec, rng, low, fractions), count, facts, rng)


@pytest.mark.parametrize("size", [64, 128, 256, 512])
@pytest.mark.parametrize("format", ["int4", "int8"])
def test_groups_of_a_chunk_and_over_chunks(
    facts: DeviceFacts, format: str, size: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, in_features=1024, weight=QuantSpec(format, "group", size))
    check(spec, stored(spec, rng), 3, facts, rng)


@pytest.mark.parametrize(("count", "split"), [(1, 3), (17, 1), (33, 2), (128, 1)])
@pytest.mark.parametrize("lanes", [0, 2])
def test_splits_and_lanes_add_in_order(
    facts: DeviceFacts, split: int, lanes: int, count: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, in_features=384, dtype="bfloat16", bias=True)
    kernel, step = ("by_lanes", lanes * 128) if lanes else ("grouped", 128)
    config = LinearConfig(kernel, 16, step, split, 4, 2)
    operation = check(spec, stored(spec, rng), count, facts, rng, config)
    x = rows(spec, count, rng)
    assert torch.equal(operation(x), operation(x))


def test_zero_points_go_with_scales_where_they_fit(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype="bfloat16", weight=FORMS["zero points"])
    inside = check(spec, stored(spec, rng), 2, facts, rng)
    assert "weight_zero_point" not in inside.state()
    others = stored(spec, rng)
    others["weight_zero_point"][0][0, 0] = 40
    assert "weight_zero_point" in check(spec, others, 2, facts, rng).state()
    with pytest.raises(
        CheckpointError, match=r"kept apart cannot replace those kept inside.*start"
    ):
        inside.load(others)


def test_a_scale_of_eight_bits_that_is_no_number_spoils_its_row(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = replace(SPEC, weight=FORMS["floats by bytes"])
    tensors = stored(spec, rng)
    tensors["weight_scale"][0][3, 5] = torch.nan
    tensors["weight_global_scale"][1][0] = torch.inf
    operation = groups.Linear(spec, facts)
    operation.load(tensors)
    rows_lost = operation(rows(spec, 2, rng)).isnan().all(0)
    assert rows_lost.nonzero().flatten().tolist() == [3, *range(24, 40)]


def test_half_precision_in_and_float32_out(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, dtype="bfloat16", out_dtype="float32")
    check(spec, stored(spec, rng), 5, facts, rng)


def test_plain_weights_are_quantized_while_they_load(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    for stored_as, bits in (("int4", 4), ("int8", 8)):
        spec = replace(SPEC, weight=QuantSpec(stored_as, "channel", online=True))
        made = torch.randn(40, 288, generator=rng, device=rng.device)
        operation = check(spec, {"weight": [made[:24], made[24:]]}, 3, facts, rng)
        kept = operation._chunks * operation._chunk * bits // 8
        assert operation.nbytes() == 40 * kept + 40 * 4


def test_loading_again_writes_where_it_lies(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, weight=FORMS["zero points"], bias=True)
    operation = check(spec, stored(spec, rng), 2, facts, rng)
    addresses = {name: held.data_ptr() for name, held in operation.state().items()}
    other = stored(spec, rng)
    operation.load(other)
    assert {name: held.data_ptr() for name, held in operation.state().items()} == addresses
    expected = PlainLinear(spec, facts)
    expected.load(other)
    x = rows(spec, 2, rng)
    torch.testing.assert_close(operation(x), expected(x), rtol=1e-4, atol=1e-3)


def test_empty_batches_and_nothing_held(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = groups.Linear(SPEC, facts)
    assert operation.state() == {} and operation.nbytes() == 0
    operation.load(stored(SPEC, rng))
    assert operation(rows(SPEC, 0, rng)).shape == (0, 40)


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({"weight": None}, "sm_90", "are not int4 or int8"),
        ({"weight": QuantSpec("fp8_e4m3", "channel")}, "sm_90", "are not int4 or int8"),
        ({"weight": QuantSpec("int4", "tensor")}, "sm_90", "are not int4 or int8"),
        ({"weight": replace(GROUPED, packing="q4_k")}, "sm_90", "are not int4 or int8"),
        ({"activation": QuantSpec("int8", "token", dynamic=True)}, "sm_90", "x is not quantized"),
        ({"weight": replace(GROUPED, group_size=48)}, "sm_90", "groups of 48"),
        ({"weight": replace(GROUPED, group_size=96)}, "sm_90", "groups of 96"),
        ({"weight": replace(GROUPED, group_size=64)}, "sm_90", "groups of 64 do not divide 288"),
        ({"weight": replace(FORMS["zero points"], online=True)}, "sm_90", "zero points"),
        ({"weight": QuantSpec("fp4_e2m1", "group", 32, online=True)}, "sm_90", "not made here"),
        ({"out_dtype": "int8"}, "sm_90", "results of type int8"),
        ({}, "sm_70", "architecture sm_70"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], arch: str, reason: str) -> None:
    verdict = groups.supports(replace(SPEC, **changes), replace(facts, arch=arch))
    assert not verdict.accepted
    assert reason in verdict.reason
