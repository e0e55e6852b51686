"""Sampling against core's reference: filters alone and together, ties, bad rows, determinism."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SampleSpec
from hotshoe.slots.reference import sampling as plain
from hotshoe_triton import sampling

SIZE, CHUNK = 300, 64
#: Group and room of the shortlist: it holds all, it never does, it holds the largest 256.
SHORTLISTS = ((4, 512), (4, 2), (1, 512))


def sample(
    facts: DeviceFacts,
    logits: torch.Tensor,
    *filters: list[float],
    shortlist: tuple[int, int] = SHORTLISTS[0],
) -> list[int]:
    """Sample with filters given as lists: temperature, top_k, top_p, min_p, uniform."""
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.float64)
    tensors = [
        torch.tensor(values, dtype=kind, device=facts.device)
        for values, kind in zip(filters, kinds, strict=True)
    ]
    spec = SampleSpec(logits.shape[1])
    kept = logits.clone()
    expected = plain.build(spec, facts)(logits, *tensors)
    actual = sampling.Sample(spec, facts, CHUNK, *shortlist)(logits, *tensors)
    assert torch.equal(logits.nan_to_num(7.5), kept.nan_to_num(7.5))
    assert actual.dtype == torch.int64
    assert actual.tolist() == expected.tolist()
    return actual.tolist()


def spread(count: int, rng: torch.Generator) -> list[float]:
    """Uniform numbers; the logits' rounding can matter only with tiny probability."""
    return torch.rand(count, generator=rng, device=rng.device).double().tolist()


FILTERS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "plain": (1.0, 0, 1.0, 0.0),
    "hot": (30.0, 0, 1.0, 0.0),
    "top_k": (0.7, 5, 1.0, 0.0),
    "top_k all": (1.0, SIZE, 1.0, 0.0),
    "top_p": (1.3, 0, 0.8, 0.0),
    "top_p nearly all": (30.0, 0, 0.995, 0.0),
    "min_p": (1.0, 0, 1.0, 0.1),
    "all": (1.5, 40, 0.9, 0.02),
}


@pytest.mark.parametrize("shortlist", SHORTLISTS)
@pytest.mark.parametrize("name", FILTERS)
def test_agrees_with_the_reference(
    facts: DeviceFacts, name: str, shortlist: tuple[int, int], rng: torch.Generator
) -> None:
    rows = 2
    logits = torch.randn(rows, SIZE + 20, generator=rng, device=facts.device)[:, :SIZE] * 3
    columns = ([value] * rows for value in FILTERS[name])
    sample(facts, logits, *columns, spread(rows, rng), shortlist=shortlist)


def test_rows_do_not_influence_each_other(facts: DeviceFacts, rng: torch.Generator) -> None:
    rows = len(FILTERS)
    logits = torch.randn(rows, SIZE, generator=rng, device=facts.device) * 3
    columns = zip(*FILTERS.values(), strict=True)
    sample(facts, logits, *map(list, columns), spread(rows, rng))


def test_ties_are_kept_and_the_lowest_wins(facts: DeviceFacts) -> None:
    logits = torch.zeros(5, 100, device=facts.device)
    logits[:, [70, 30]] = 1.0
    logits[2, :] = -0.0
    logits[2, 50] = 0.0
    tokens = sample(
        facts,
        logits,
        [0.0, 1.0, 0.0, 1.0, 1.0],
        [0, 1, 0, 3, 0],
        [1.0, 1.0, 1.0, 1.0, 0.01],
        [0.0] * 5,
        [0.0, 0.999, 0.0, 0.9999, 0.75],
    )
    assert tokens == [30, 70, 0, 99, 70]


def test_rows_without_a_finite_maximum(facts: DeviceFacts) -> None:
    logits = torch.randn(6, SIZE, device=facts.device)
    logits[0, 200] = float("nan")
    logits[1, :] = float("-inf")
    logits[2, 3] = float("inf")
    logits[3, :299] = float("-inf")
    logits[4, 200] = float("nan")
    tokens = sample(
        facts, logits, [0.0, 1.0, 1.0, 1.0, 1.0, 0.0], [0] * 6, [1.0] * 6, [0.0] * 6, [0.5] * 6
    )
    assert tokens[:5] == [-1, -1, -1, 299, -1]


def test_extremes_of_the_uniform_number(facts: DeviceFacts, rng: torch.Generator) -> None:
    logits = torch.randn(4, SIZE, generator=rng, device=facts.device)
    logits[:, 0] = float("-inf")
    logits[:, -1] = float("-inf")
    top = 1 - 2**-53
    tokens = sample(facts, logits, [1.0] * 4, [0, 0, 7, 7], [1.0] * 4, [0.0] * 4, [0, top] * 2)
    assert tokens[0] == 1
    assert tokens[1] == SIZE - 2


def test_tiny_and_huge_temperatures(facts: DeviceFacts, rng: torch.Generator) -> None:
    logits = torch.randn(3, SIZE, generator=rng, device=facts.device)
    temperatures = [1e-40, 1e-6, 1e6]
    # At the last one every weight is nearly one: the number falls well inside the 91st of 300.
    uniform = [0.5, 0.5, 90.5 / SIZE]
    sample(facts, logits, temperatures, [0] * 3, [1.0] * 3, [0.0] * 3, uniform)


@pytest.mark.parametrize("shortlist", SHORTLISTS[:2])
@pytest.mark.parametrize("name", ["greedy", "plain", "top_k"])
def test_rows_far_apart_need_64_bits(
    facts: DeviceFacts, name: str, shortlist: tuple[int, int], rng: torch.Generator
) -> None:
    logits = torch.randn(3, SIZE, generator=rng, device=facts.device)
    columns = ([value] * 3 for value in FILTERS[name])
    sample(facts, far_apart(logits), *columns, spread(3, rng), shortlist=shortlist)


def test_empty_batch(facts: DeviceFacts) -> None:
    assert sample(facts, torch.empty(0, SIZE, device=facts.device), [], [], [], [], []) == []


@given(st.data())
def test_keys_order_as_values_do(data: st.DataObject) -> None:
    """The mapping that the threshold search relies on, written out in torch."""
    floats = st.floats(width=32, allow_nan=False)
    a, b = data.draw(floats), data.draw(floats)
    pair = torch.tensor([a, b])
    bits = torch.where(pair == 0, 0.0, pair).view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).tolist()
    assert (keys[0] < keys[1]) == (a < b)
    assert (keys[0] == keys[1]) == (a == b)
