"""Native latent attention against float64: forms of rows, shapes, mixed steps, prompts."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.mla_attention import absorbs
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.cases.mla_attention import BASE, SUITE, VARIATIONS, MlaProblem
from hotshoe_conformance.place import Place
from hotshoe_cpu import latent

EIGHT_BITS = ("int8", "float8_e4m3fn", "float8_e5m2")
DTYPES = ("float32", "bfloat16", "float16")
#: Requests as (queries, length).
MIXED = Batch(((1, 45), (1, 1), (5, 21), (3, 3), (1, 200), (40, 40), (9, 70)), spare=8, gap=2)
DECODE = Batch(((1, 2000), (1, 7), (1, 301)), spare=1)
CHUNKS = Batch(((2, 1300), (7, 900)))
PROMPT = Batch(((150, 150), (20, 20)), gap=3)


def problem_of(spec: object, batch: Batch, rng: torch.Generator) -> MlaProblem:
    problem = SUITE.problem(Setup(spec, batch), rng)
    assert isinstance(problem, MlaProblem)
    return problem


def check(problem: MlaProblem, op: latent.MlaAttention) -> None:
    place = Place("cpu")
    got = problem.call(op, place)
    assert not place.overrun()
    for name, expected in problem.expected().items():
        found = expected.check(got[name])
        assert not found.message, f"{name}: {found.message}"


@pytest.mark.parametrize("changes", [*VARIATIONS, {"num_heads": 35}, {"rope_dim": 24}], ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert latent.supports(spec, facts).accepted
    check(problem_of(spec, MIXED, rng), latent.MlaAttention(spec, facts))


@pytest.mark.parametrize("kind", ["", *EIGHT_BITS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [DECODE, CHUNKS, PROMPT, MIXED], ids=str)
def test_forms_of_rows(
    facts: DeviceFacts, batch: Batch, dtype: str, kind: str, rng: torch.Generator
) -> None:
    """Of 48 latents, vectors of 8-bit numbers have a rest; long passes are cut and joined."""
    spec = replace(in_dtype(BASE, dtype), latent_dim=48, num_heads=5)
    spec = replace(spec, kv_dtype=kind or spec.kv_dtype)
    assert latent.supports(spec, facts).accepted
    check(problem_of(spec, batch, rng), latent.MlaAttention(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_are_made_for_some_heads_at_a_time(
    facts: DeviceFacts, dtype: str, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent, "MADE_BYTES", 150 * 2 * 48 * 4 * 2)
    spec = replace(in_dtype(BASE, dtype), num_heads=7)
    op, made = latent.MlaAttention(spec, facts), []
    original = op._projected._made
    monkeypatch.setattr(op._projected, "_made", lambda *a: made.append(len(a[1])) or original(*a))
    check(problem_of(spec, PROMPT, rng), op)
    assert made[0] < 7 and sum(made) == 14


@pytest.mark.parametrize("changes", [{"v_dim": 64}, {"nope_dim": 250}, {"nope_dim": 33}], ids=str)
def test_heads_that_the_kernel_of_attention_does_not_take(
    facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator
) -> None:
    """Prompts are then computed over rows as they lie, too."""
    spec = replace(BASE, latent_dim=256, **changes)
    op = latent.MlaAttention(spec, facts)
    assert not op._projected.usable and not absorbs(spec, 150, 150)
    check(problem_of(spec, PROMPT, rng), op)


@pytest.mark.parametrize("batch", [DECODE, MIXED], ids=["decode", "mixed"])
def test_a_query_that_is_not_finite_harms_no_other(
    facts: DeviceFacts, batch: Batch, rng: torch.Generator
) -> None:
    problem, op = problem_of(BASE, batch, rng), latent.MlaAttention(BASE, facts)
    fine = problem.call(op, Place("cpu"))["out"]
    problem.q[1] = torch.nan
    found = problem.call(op, Place("cpu"))["out"]
    assert found[1].isnan().all()
    others = torch.arange(len(found)) != 1
    torch.testing.assert_close(found[others], fine[others], rtol=0, atol=0)


def test_large_scores_do_not_overflow(facts: DeviceFacts, rng: torch.Generator) -> None:
    """With weights of one row only, its values are the result."""
    spec = replace(BASE, scale=1e5)
    problem, op = problem_of(spec, DECODE, rng), latent.MlaAttention(spec, facts)
    found = problem.call(op, Place("cpu"))["out"]
    expected = problem.expected()["out"].value
    assert ((found.double() - expected).abs() < 1e-3).float().mean() > 0.9


def test_no_requests(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem, op = problem_of(BASE, DECODE, rng), latent.MlaAttention(BASE, facts)
    op.load(problem.up)
    shape, view = problem.step(Place("cpu"))
    prepared = op.prepare(replace(shape, num_reqs=0), view)
    assert op(problem.q[:0], problem.cache(Place("cpu")), prepared).shape == (0, 4 * 32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "int4"}, "kv_dtype int4 is not one of float32"),
        ({"kv_dtype": "int8", "latent_dim": 24}, "multiples of 16 bytes, not 24 and 64"),
        ({"dtype": "float64"}, "element type float64"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert reason in latent.supports(replace(BASE, **changes), facts).reason
