"""Attention with logits of relative positions against core's reference, over the kernel's cache."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import relative_attention as cases
from hotshoe_conformance.cases.attention import BASE, Batch
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.place import Place, poisoned
from hotshoe_cpu import relative

MIXED = Batch(((1, 45), (9, 30), (7, 7), (33, 40), (1, 300)), 64, 3)
VARIANTS = [
    {"extent": 1},
    {"states": 16, "extent": 1024},
    {"attention": replace(BASE, window=20)},
    {"attention": replace(BASE, num_kv_heads=1, head_dim=80)},
    {"attention": replace(BASE, num_heads=40, num_kv_heads=2, head_dim=128)},
    {"attention": replace(BASE, kv_dtype="int8", kv_scales="token")},
]


@pytest.mark.parametrize(("dtype", "tokens"), [("float32", 7), ("bfloat16", 99), ("float16", 99)])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(
    facts: DeviceFacts,
    changes: dict[str, object],
    dtype: str,
    tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = in_dtype(replace(cases.PLAIN, **changes), dtype)
    if spec.attention.kv_scales != "none":
        spec = replace(spec, attention=replace(spec.attention, kv_dtype="int8"))
    verdict = relative.supports(spec, facts)
    assert verdict.accepted, verdict.reason
    monkeypatch.setattr(
        relative, "LOGITS_BYTES", 4 * spec.attention.num_heads * (spec.extent + 1) * tokens
    )
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    problem, place = cases.SUITE.problem(Setup(spec, MIXED), source), Place("cpu")
    with poisoned():
        got = problem.call(relative.RelativeAttention(spec, facts), place)
    assert not place.overrun()
    found = problem.expected()["out"].check(got["out"])
    assert not found.message, found.message


def test_refusals(facts: DeviceFacts) -> None:
    for own in (replace(BASE, softcap=5.0), replace(BASE, head_dim=12)):
        assert not relative.supports(replace(cases.PLAIN, attention=own), facts).accepted
