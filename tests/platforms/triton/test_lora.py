"""The kernels of adapters against float64."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraSpec, LoraTokens
from hotshoe.slots.reference.lora import tokens_of
from hotshoe_triton import lora

NAN = float("nan")
#: Largest error of a sum's parts, each of which is about 1.
TOLERANCE = {"float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}
SPECS = {
    "plain": LoraSpec(64, 96, 16, 5, "float32"),
    "odd": LoraSpec(131, 37, 5, 5, "float32"),
    "stacked": LoraSpec(300, 130, 24, 5, "float32", (70, 23, 37)),
    "high": LoraSpec(64, 70, 200, 5, "float32"),
}


def places_of(kind: str, tokens: int, facts: DeviceFacts, rng: torch.Generator) -> torch.Tensor:
    """Draw who has which of adapters 0 to 3; in blocks, neighbors have the same."""
    found = torch.randint(-1, 4, (tokens,), generator=rng, device=facts.device).int().cpu()
    return {"mixed": found, "blocks": found.sort().values.roll(tokens // 3), "one": found * 0 + 2}[
        kind
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "tokens", "kind"), [
    ("plain", 1, "one"), ("plain", 40, "one"), ("plain", 40, "mixed"), ("odd", 7, "mixed"),
    ("stacked", 20, "mixed"), ("stacked", 530, "blocks"), ("high", 3, "mixed"),
    ("odd", 513, "mixed"), ("plain", 130, "one"), ("stacked", 129, "mixed"),
])  # fmt: skip
def test_each_token_gets_what_its_adapter_adds(
    facts: DeviceFacts, name: str, tokens: int, kind: str, dtype: str, rng: torch.Generator
) -> None:
    base, device = SPECS[name], facts.device
    spec = LoraSpec(base.in_features, base.out_features, base.rank, 5, dtype, base.parts)
    assert lora.supports(spec, facts).accepted
    parts = spec.parts or (spec.out_features,)
    share = spec.rank // len(parts)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device)

    number = getattr(torch, dtype)
    x = draw(tokens, spec.in_features + 5).to(number)[:, 5:]
    own = draw(tokens, spec.out_features).to(number)
    a = (draw(5, spec.rank, spec.in_features) * spec.in_features**-0.5).to(number)
    diagonal = torch.block_diag(*(torch.ones(share, n) for n in parts)).to(device)
    b = (draw(5, spec.rank, spec.out_features) * share**-0.5 * diagonal).to(number)
    a[4] = b[4] = NAN  # of nobody
    places = places_of(kind, tokens, facts, rng)
    whole = torch.full((tokens, spec.out_features + 3), NAN, dtype=number, device=device)
    y = whole[:, :-3].copy_(own)
    lora.Lora(spec, facts)(y, x, a, b, tokens_of(places, 5, device))

    wanted = own.double()
    for place in range(4):
        rows = (places == place).to(device)
        wanted[rows] += x[rows].double() @ a[place].double().T @ b[place].double()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)
    assert torch.equal(y[(places < 0).to(device)], own[(places < 0).to(device)])
    assert whole[:, spec.out_features :].isnan().all()


@pytest.mark.parametrize("tokens", [1, 40, 131])
def test_a_step_says_itself_who_has_which_adapter(
    facts: DeviceFacts, tokens: int, rng: torch.Generator
) -> None:
    """Its tokens come in no order, and any number below 0 stands for none."""
    base, device = replace(SPECS["stacked"], late=True), facts.device
    x, y = (torch.randn(tokens, n, generator=rng, device=device) for n in (300, 130))
    a, b = (torch.randn(5, 24, n, generator=rng, device=device) / 16 for n in (300, 130))
    parts = torch.block_diag(*(torch.ones(8, n) for n in base.parts)).to(device)
    places = torch.randint(-9, 5, (tokens,), generator=rng, device=device).int()
    wanted = y.double()
    for place in range(5):
        rows = places == place
        wanted[rows] += x[rows].double() @ a[place].double().T @ (b[place] * parts).double()
    nothing = places.new_empty(0)
    lora.Lora(base, facts)(y, x, a, b * parts, LoraTokens(places, nothing, nothing, range(5)))
    torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)


def test_nobody_has_an_adapter(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec, device = SPECS["plain"], facts.device
    a, b = (torch.full((5, 16, n), NAN, device=device) for n in (64, 96))
    op = lora.Lora(spec, facts)
    for count in (0, 3):
        x, y = (torch.randn(count, n, generator=rng, device=device) for n in (64, 96))
        before = y.clone()
        op(y, x, a, b, tokens_of(torch.full((count,), -1, dtype=torch.int32), 5, device))
        assert torch.equal(y, before)


@pytest.mark.parametrize("counts", [(1,), (16, 16), (17, 1, 1), (64, 65, 1, 1), (3,) * 40])
def test_grids_hold_what_tokens_can_make(counts: tuple[int, ...]) -> None:
    for block in (16, 64):
        tiles = sum(-(-count // block) for count in counts)
        assert tiles <= lora.most_tiles(sum(counts), len(counts), block) <= sum(counts)
        assert tiles <= lora.most_tiles(sum(counts), 1000, block)


def test_other_types_are_refused(facts: DeviceFacts) -> None:
    assert "float64" in lora.supports(LoraSpec(8, 8, 2, 1, "float64"), facts).reason
