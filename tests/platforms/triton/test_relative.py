"""Attention with logits of relative positions against core's reference: shapes and slices."""

from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, drawn

from hotshoe.platform import DeviceFacts
from hotshoe.slots import RelativeAttentionSpec
from hotshoe_conformance.cases import relative_attention as cases
from hotshoe_conformance.cases.attention import BASE, Batch
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.place import poisoned
from hotshoe_triton import relative
from hotshoe_triton.attention import Tiling
from hotshoe_triton.relative import RelativeAttention

SMALL = Tiling(16, 16, 4, 1, 2, 32)
VARIANTS = [
    {"extent": 1},
    {"states": 16, "extent": 100},
    {"attention": replace(BASE, window=20)},
    {"attention": replace(BASE, num_heads=7, num_kv_heads=1, head_dim=80)},
    {"attention": replace(BASE, num_heads=20, num_kv_heads=1)},
    {"attention": replace(BASE, kv_dtype="int8", kv_scales="token")},
]
MIXED = Batch(((1, 45), (9, 30), (7, 7), (14, 94)), 64, 3)
DECODE = Batch(((1, 45), (1, 1), (1, 200)))


def check(spec: RelativeAttentionSpec, steps: Batch, facts: DeviceFacts, **options: object) -> None:
    verdict = relative.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    problem = drawn(cases.SUITE, spec, steps)
    with poisoned():
        check_results(problem, RelativeAttention(spec, facts, **options), facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(
    facts: DeviceFacts, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of eleven tokens."""
    spec = replace(cases.PLAIN, **changes)
    row = 4 * spec.attention.num_heads * spec.extent
    monkeypatch.setattr(relative, "LOGITS_BYTES", 11 * row)
    check(spec, MIXED, facts, tiling=SMALL)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("steps", [MIXED, DECODE], ids=["mixed", "decode"])
def test_steps_as_shipped(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(cases.PLAIN, dtype), steps, facts)


@pytest.mark.parametrize("units", [1, 200])
def test_programs_share_the_keys_of_a_tile(facts: DeviceFacts, units: int) -> None:
    check(cases.PLAIN, DECODE, replace(facts, compute_units=units), tiling=SMALL)


def test_refusals(facts: DeviceFacts) -> None:
    for own in (replace(BASE, softcap=5.0), replace(BASE, head_dim=12)):
        assert not relative.supports(replace(cases.PLAIN, attention=own), facts).accepted
