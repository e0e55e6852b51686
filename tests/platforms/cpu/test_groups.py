"""Candidate `groups` against core's reference: forms of weights, parts, new values, refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear as Reference
from hotshoe_cpu import groups
from hotshoe_cpu.linear import INT8_ACTIVATION

FORMS = [
    QuantSpec("int4", "group", 32),
    QuantSpec("int4", "group", 16, symmetric=False),
    QuantSpec("int8", "group", 32, symmetric=False),
    QuantSpec("int8", "group", 8),
    QuantSpec("int8", "group", 16, bits=6),
    QuantSpec("int8", "group", 32, symmetric=False, bits=5),
    QuantSpec("fp4_e2m1", "group", 32),
    QuantSpec("int8", "group", 16, values=(-128, -43, -8, 7, 25, 127)),
    QuantSpec("int8", "group", 32, symmetric=False, bits=5, values=tuple(range(-8, 8))),
    QuantSpec("int4", "group", 32, values=(-1, 0, 1, 2)),
    QuantSpec("int4", "group", 16, symmetric=False, values=(0, 1, 2, 3)),
    QuantSpec("int4", "channel"),
    QuantSpec("int8", "channel", symmetric=False),
    QuantSpec("int4", "group", 32, online=True),
]
BASE = LinearSpec(96, 48, "float32", weight=FORMS[0])


def drawn(rng: torch.Generator, spec: LinearSpec, signed: bool) -> dict[str, list[Tensor]]:
    """A checkpoint's rows in three parts, whose integers begin at 0 unless they are signed."""
    quant = spec.weight
    assert quant is not None
    sizes = [5, 30, spec.out_features - 35]
    dtype = getattr(torch, spec.dtype)  # to which the reference rounds a bias
    biases = [torch.randn(n, generator=rng).to(dtype) for n in sizes]
    tensors = {"bias": biases} if spec.bias else {}
    if quant.online:
        return tensors | {"weight": [torch.randn(n, 96, generator=rng) for n in sizes]}
    few = groups.FLOATS.get(quant.format, quant.values)
    high = 2 ** ((quant.bits or groups.BITS.get(quant.format, 8)) - 1)
    low, high = (-high, high) if signed or quant.symmetric else (0, min(2 * high, 128))
    known = torch.tensor(few or range(low, high), dtype=torch.int8)
    columns = 96 // (quant.group_size or 96)
    made = {
        "weight": [known[torch.randint(len(known), (n, 96), generator=rng)] for n in sizes],
        "weight_scale": [torch.randn(n, columns, generator=rng) for n in sizes],
    }
    if not quant.symmetric:
        zeros = [torch.randn(n, columns, generator=rng) * 3 for n in sizes]
        made["weight_zero_point"] = zeros
    return tensors | made


def magnitude(held: Reference) -> Tensor:
    """Return what the summands of each weight come to, their signs left out: [48, 96]."""
    state = held.state()
    wide = state["weight"].double().abs()
    size = 96 // state["weight_scale"].shape[1]
    if "weight_zero_point" in state:
        wide = wide + state["weight_zero_point"].double().abs().repeat_interleave(size, 1)
    return (wide + 128) * state["weight_scale"].double().abs().repeat_interleave(size, 1)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_as_the_reference(
    facts: DeviceFacts, rng: torch.Generator, form: QuantSpec, dtype: str, signed: bool
) -> None:
    spec = LinearSpec(96, 48, dtype, bias=True, weight=form, out_dtype="float32")
    assert groups.supports(spec, facts).accepted
    reference, actual = Reference(spec, facts), groups.Linear(spec, facts)
    for _ in range(2):  # new values lie where the old ones lay
        tensors = drawn(rng, spec, signed)
        reference.load(tensors)
        actual.load(tensors)
        for x in (torch.randn(m, 100, generator=rng).to(getattr(torch, dtype)) for m in (1, 5, 20)):
            want, got = reference(x[:, :96]), actual(x[:, :96])
            size = x[:, :96].double().abs() @ magnitude(reference).T + 1
            unit = 2.0**-20 if dtype == "float32" else 2.0**-11 if len(x) <= 4 else 2.0**-8
            assert ((got - want).abs() <= unit * size).all()


def test_held_bytes(facts: DeviceFacts, rng: torch.Generator) -> None:
    operation = groups.Linear(BASE, facts)
    assert operation.nbytes() == 0 and operation.state() == {}
    operation.load(drawn(rng, BASE, True))
    assert operation.nbytes() == 48 * 96 // 2 + 48 * 3 * 4 == operation.state()["packed"].nbytes


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (QuantSpec("fp4_e2m1", "group", 32), 4),
        (QuantSpec("int8", "group", 32, values=tuple(range(16))), 4),
        (QuantSpec("int8", "group", 32, values=(-8, 0, 8)), 2),
        (QuantSpec("int4", "group", 32, values=(-1, 0, 1, 2)), 2),
        (QuantSpec("int8", "group", 32, values=tuple(range(17)), bits=5), 6),
        (QuantSpec("int8", "group", 32, values=tuple(range(17))), 8),
    ],
    ids=str,
)
def test_few_values_take_few_bits(facts: DeviceFacts, form: QuantSpec, bits: int) -> None:
    spec = replace(BASE, weight=form)
    operation = groups.Linear(spec, facts)
    rows = torch.zeros(48, 96, dtype=torch.int8)
    operation.load({"weight": [rows], "weight_scale": [torch.ones(48, 3)]})
    assert operation.nbytes() == 48 * 96 * bits // 8 + 48 * 3 * 4
    assert operation.nbytes() == groups.weight_bytes(spec, facts)


def test_values_that_a_form_lacks_are_refused(facts: DeviceFacts) -> None:
    spec = replace(BASE, weight=QuantSpec("int8", "group", 32, values=(-8, 1, 8)))
    rows = torch.ones(48, 96, dtype=torch.int8)
    rows[47, 95] = 2
    with pytest.raises(ValueError, match="the table lacks some of the values"):
        groups.Linear(spec, facts).load({"weight": [rows], "weight_scale": [torch.ones(48, 3)]})


@pytest.mark.parametrize("form", [f for f in FORMS if f.format == "int4"], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_x_in_int8(facts: DeviceFacts, rng: torch.Generator, form: QuantSpec, dtype: str) -> None:
    """x is whole numbers up to 127, which no rounding changes, so that results are near."""
    spec = LinearSpec(96, 48, dtype, weight=form, activation=INT8_ACTIVATION, out_dtype="float32")
    assert groups.supports(spec, facts).accepted
    reference, actual = Reference(spec, facts), groups.Linear(spec, facts)
    tensors = drawn(rng, spec, True)
    reference.load(tensors)
    actual.load(tensors)
    for m in (0, 1, 5, 12, 13, 40):
        x = torch.randint(-127, 128, (m, 100), generator=rng).to(getattr(torch, dtype))[:, :96]
        x[:, 7] = 127
        want, got = reference(x), actual(x)
        size = x.double().abs() @ magnitude(reference).T + 1
        unit = 2.0**-20 if dtype == "float32" else 2.0**-11 if m <= 32 else 2.0**-8
        assert ((got.double() - want.double()).abs() <= unit * size).all()
    x = torch.randn(40, 96, generator=rng).to(getattr(torch, dtype))
    x[3, 5] = float("nan")
    for rows in (x, x[:5]):
        assert actual(rows).isnan().all(1).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"weight": None}, "plain weights are not int4 or int8"),
        ({"weight": replace(FORMS[0], packing="x")}, "are not int4 or int8 with scales by group"),
        ({"weight": QuantSpec("fp8_e4m3", "channel")}, "are not int4 or int8"),
        ({"weight": QuantSpec("int8", "tensor")}, "are not int4 or int8 with scales by group"),
        ({"weight": replace(FORMS[0], permuted=True)}, "another order than x's"),
        ({"weight": QuantSpec("fp4_e2m1", "group", 32, online=True)}, "4-bit floats are not made"),
        ({"weight": replace(FORMS[0], group_size=4)}, "groups of 4 among 96 inputs"),
        ({"weight": replace(FORMS[0], group_size=None)}, "groups of 0 among 96"),
        ({"in_features": 100}, "groups of 32 among 100 inputs"),
        (
            {"activation": QuantSpec("fp8_e4m3", "token", dynamic=True)},
            "x is rounded to int8 by token",
        ),
        ({"weight": FORMS[2], "activation": INT8_ACTIVATION}, "beside int4"),
        (
            {
                "weight": QuantSpec("int4", "channel"),
                "activation": INT8_ACTIVATION,
                "in_features": 2**20,
            },
            "fit 32 bits",
        ),
        ({"dtype": "float16"}, "x of type float16"),
        ({"out_dtype": "int8"}, "results of type int8"),
    ],
)
def test_refusals_say_why(facts: DeviceFacts, changed: dict[str, object], said: str) -> None:
    verdict = groups.supports(replace(BASE, **changed), facts)
    assert not verdict.accepted and said in verdict.reason
