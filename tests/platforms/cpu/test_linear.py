"""Linear adapter against core's reference: plain and int8 operands, parts, biases, refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear as Reference
from hotshoe.slots.reference.linear import quantize_rows
from hotshoe_cpu import linear

ONLINE, STORED = QuantSpec("int8", "channel", online=True), QuantSpec("int8", "channel")
PER_TOKEN = QuantSpec("int8", "token", dynamic=True)
SPECS = [
    LinearSpec(70, 48, "float32"),
    LinearSpec(70, 48, "bfloat16", bias=True),
    LinearSpec(70, 48, "bfloat16", out_dtype="float32"),
    LinearSpec(70, 48, "bfloat16", bias=True, weight=ONLINE, activation=PER_TOKEN),
    LinearSpec(70, 48, "float16", weight=ONLINE, activation=PER_TOKEN),
]


def parts(rng: torch.Generator, spec: LinearSpec, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """A checkpoint's rows in three parts, one of them transposed in memory."""
    sizes = [5, 30, spec.out_features - 35]
    weight = [torch.randn(n, spec.in_features, generator=rng).to(dtype) for n in sizes]
    weight[1] = weight[1].T.contiguous().T
    tensors = {"weight": weight}
    if spec.bias:
        tensors["bias"] = [torch.randn(n, generator=rng).to(dtype) for n in sizes]
    return tensors


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_matches_the_reference(
    facts: DeviceFacts, rng: torch.Generator, spec: LinearSpec, stored: torch.dtype
) -> None:
    assert linear.supports(spec, facts).accepted
    dtype = getattr(torch, spec.dtype)
    tensors = parts(rng, spec, stored)
    reference, actual = Reference(spec, facts), linear.Linear(spec, facts)
    reference.load(tensors)
    actual.load(tensors)
    for part in tensors["weight"]:
        part.fill_(float("nan"))  # the operation keeps nothing of the checkpoint's
    for rows in (0, 1, 3, 40):
        x = torch.randn(rows, 100, generator=rng).to(dtype)[:, :70]
        want, got = reference(x), actual(x)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        # An activation between two int8 values may go either way: one step of about 0.02.
        narrow = spec.dtype != "float32"
        absolute = 1e-5 if not narrow else 1e-2 if spec.weight is None else 0.15
        torch.testing.assert_close(got, want, rtol=2**-7 if narrow else 1e-5, atol=absolute)


def test_int8_checkpoints_keep_their_values(facts: DeviceFacts, rng: torch.Generator) -> None:
    stored = LinearSpec(64, 48, "float32", weight=STORED, activation=PER_TOKEN)
    online = replace(stored, weight=ONLINE)
    assert linear.supports(stored, facts).accepted
    weight = [torch.randn(n, 64, generator=rng) for n in (17, 31)]
    values, scales = zip(*map(quantize_rows, weight), strict=True)
    from_checkpoint, quantized = linear.Linear(stored, facts), linear.Linear(online, facts)
    from_checkpoint.load({"weight": values, "weight_scale": [s[:, None] for s in scales]})
    quantized.load({"weight": weight})
    x = torch.randn(9, 64, generator=rng)
    torch.testing.assert_close(from_checkpoint(x), quantized(x), rtol=0.1, atol=0.15)
    dense = torch.cat(values).double() * torch.cat(scales).double()[:, None]
    torch.testing.assert_close(
        from_checkpoint(x).double(), x.double() @ dense.T, rtol=0.1, atol=0.5
    )


def test_bytes_are_those_of_the_packed_weight(facts: DeviceFacts) -> None:
    spec = LinearSpec(64, 33, "bfloat16", bias=True)
    operation = linear.Linear(spec, facts)
    operation.load({"weight": [torch.zeros(33, 64)], "bias": [torch.zeros(33)]})
    assert operation.nbytes() == 48 * 64 * 2 + 33 * 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float16"}, "weights of type float16 are not packed"),
        ({"dtype": "float64"}, "float64"),
        ({"out_dtype": "int8"}, "results of type int8"),
        ({"weight": ONLINE}, "neither plain nor int8"),
        ({"activation": PER_TOKEN}, "neither plain nor int8"),
        ({"weight": replace(ONLINE, symmetric=False), "activation": PER_TOKEN}, "with zero points"),
        ({"weight": QuantSpec("int4", "group", 128), "activation": None}, "int4"),
        (
            {"in_features": 131073, "weight": ONLINE, "activation": PER_TOKEN},
            "131073 inputs are more than the 131072",
        ),
    ],
)
def test_refusals_say_why(facts: DeviceFacts, change: dict[str, object], reason: str) -> None:
    verdict = linear.supports(replace(LinearSpec(8, 8, "bfloat16"), **change), facts)
    assert not verdict.accepted and reason in verdict.reason
