"""The kernel of adapters against core's reference and float64, on every build of the kernels."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraSpec
from hotshoe.slots.reference.lora import build, tokens_of
from hotshoe_cpu import lora
from hotshoe_cpu.native import kernels

NAN = float("nan")
SPECS = {
    "small": LoraSpec(10, 7, 3, 4, "float32"),
    "vectors": LoraSpec(128, 96, 16, 4, "float32"),
    "odd": LoraSpec(131, 37, 5, 4, "float32"),
    "stacked": LoraSpec(64, 1100, 24, 4, "float32", (600, 463, 37)),
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


class Inputs:
    """Tokens in rows with gaps. Adapter 3 holds NaN, which no other may see."""

    def __init__(self, spec: LoraSpec, tokens: int, rng: torch.Generator) -> None:
        kind = getattr(torch, spec.dtype)
        self.spec = spec
        self.x = torch.randn(tokens, spec.in_features + 5, generator=rng).to(kind)[:, 5:]
        self.y = torch.randn(tokens, spec.out_features + 3, generator=rng).to(kind)[:, :-3]
        self.a = torch.randn(4, spec.rank, spec.in_features, generator=rng)
        self.b = torch.randn(4, spec.rank, spec.out_features, generator=rng)
        self.a = (self.a * spec.in_features**-0.5).to(kind)
        parts = spec.parts or (spec.out_features,)
        share = spec.rank // len(parts)
        self.b = (self.b * torch.block_diag(*(torch.ones(share, n) for n in parts))).to(kind)
        self.a[3] = NAN
        self.places = torch.randint(-1, 3, (tokens,), generator=rng).int()

    def run(self, op: object, rows: slice = slice(None)) -> torch.Tensor:
        whole = torch.full((len(self.y), self.y.stride(0)), NAN, dtype=self.y.dtype)
        y = whole[rows, : self.spec.out_features].copy_(self.y[rows])
        places = self.places[rows].contiguous()
        op(y, self.x[rows], self.a, self.b, tokens_of(places, 4, "cpu"))
        assert whole[:, self.spec.out_features :].isnan().all()
        return y

    def expected(self) -> torch.Tensor:
        y = self.y.double()
        for row, place in enumerate(self.places.tolist()):
            if place >= 0:
                low = self.a[place].double() @ self.x[row].double()
                y[row] += self.b[place].double().T @ low
        return y.to(self.y.dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_each_token_gets_what_its_adapter_adds(
    facts: DeviceFacts, name: str, tokens: int, dtype: str, rng: torch.Generator
) -> None:
    base = SPECS[name]
    spec = LoraSpec(base.in_features, base.out_features, base.rank, 4, dtype, base.parts)
    assert lora.supports(spec, facts).accepted
    inputs = Inputs(spec, tokens, rng)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    actual = inputs.run(lora.Lora(spec, facts))
    torch.testing.assert_close(actual, inputs.expected(), **tolerance)
    wide = 4 * TOLERANCE[dtype]  # the reference rounds the numbers between both products
    torch.testing.assert_close(actual, inputs.run(build(spec, facts)), rtol=wide, atol=wide)


@pytest.mark.parametrize("name", ["odd", "stacked"])
def test_rows_that_an_adapter_leaves_zero_are_not_read(
    facts: DeviceFacts, name: str, rng: torch.Generator
) -> None:
    spec = SPECS[name]
    inputs, op = Inputs(spec, 40, rng), lora.Lora(spec, facts)
    parts = len(spec.parts) or 1
    most = spec.rank // parts
    held = torch.randint(0, most + 1, (4, parts + 2), generator=rng, dtype=torch.int32)
    held[0], held[1, :-2] = most, 0
    ranks = held[:, :-2]
    unused = torch.arange(most) >= ranks[:, :, None]
    for factors in (inputs.a, inputs.b):
        factors.view(4, parts, most, -1)[unused] = 0
    expected = inputs.expected()
    for factors in (inputs.a, inputs.b):
        factors.view(4, parts, most, -1)[unused] = NAN

    def ranked(y: torch.Tensor, *operands: torch.Tensor) -> None:
        op(y, *operands[:-1], operands[-1]._replace(ranks=ranks))

    torch.testing.assert_close(inputs.run(ranked), expected, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_others(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = LoraSpec(131, 700, 7, 4, "bfloat16")
    inputs, op = Inputs(spec, 40, rng), lora.Lora(spec, facts)
    together = inputs.run(op)
    alone = torch.cat([inputs.run(op, slice(i, i + 1)) for i in range(40)])
    assert torch.equal(together, alone)


def test_tokens_without_an_adapter_stay_as_they_are(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    inputs = Inputs(SPECS["small"], 5, rng)
    inputs.places[:] = -1
    assert torch.equal(inputs.run(lora.Lora(SPECS["small"], facts)), inputs.y)
    nobody = Inputs(SPECS["small"], 0, rng)
    assert nobody.run(lora.Lora(SPECS["small"], facts)).shape == (0, 7)


def test_a_recorded_call_reads_the_places_of_its_repetition(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    native, spec = kernels(facts), SPECS["vectors"]
    inputs, op = Inputs(spec, 5, rng), lora.Lora(spec, facts)
    y = inputs.y.clone()
    native.record_begin()
    tokens = tokens_of(inputs.places, 4, "cpu")
    op(y, inputs.x, inputs.a, inputs.b, tokens)
    calls = native.record_end()
    inputs.places.copy_(inputs.places.roll(1))
    tokens.places.copy_(inputs.places)
    y.copy_(inputs.y)
    native.record_replay(calls)
    torch.testing.assert_close(y, inputs.expected(), rtol=1e-5, atol=1e-5)


def test_other_types_are_refused(facts: DeviceFacts) -> None:
    assert "float64" in lora.supports(LoraSpec(8, 8, 2, 1, "float64"), facts).reason
