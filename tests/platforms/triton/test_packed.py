"""Packed attention against float64: heads, windows, rotations, lengths, tiles."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import packed_attention as cases
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.place import Place
from hotshoe_triton import packed

SPEC, Requests = cases.BASE, cases.Requests
VARIATIONS = [
    {"num_kv_heads": 2},
    {"num_heads": 3, "num_kv_heads": 1},
    {"head_dim": 80},
    {"head_dim": 16, "scale": 0.5},
    {"window": 0},
    {"window": 5},
    {"rotary_dim": 32, "num_kv_heads": 2},
    {"rotary_dim": 8, "window": 9},
    {"bias_span": 6, "scale": 1.0},
    {"bias_span": 50, "window": 9, "num_kv_heads": 2},
    {"limited": True, "bias_span": 3},
    {"limited": True, "window": 6},
]


def check(spec, lengths, facts) -> None:
    assert packed.supports(spec, facts).accepted
    op = packed.PackedAttention(spec, facts)
    check_results(drawn(cases.SUITE, spec, Requests(lengths)), op, facts)


@pytest.mark.parametrize("changes", VARIATIONS, ids=str)
def test_variations(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), (7, 1, 40), facts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("lengths", [(1,), (64, 64, 1), (130, 17)], ids=str)
@pytest.mark.parametrize("window", [None, 20])
def test_steps(facts: DeviceFacts, lengths, dtype: str, window: int | None) -> None:
    spec = replace(in_dtype(SPEC, dtype), window=window, num_heads=2, num_kv_heads=1)
    check(spec, lengths, facts)


@pytest.mark.parametrize("span", [0, 5, 91])
def test_tiles_beyond_the_span_of_a_bias(facts: DeviceFacts, span: int) -> None:
    spec = replace(in_dtype(SPEC, "bfloat16"), num_heads=2, num_kv_heads=1, bias_span=span)
    check(spec, (300, 1, 130), facts)


def test_more_requests_than_are_looked_at_together(facts: DeviceFacts, monkeypatch) -> None:
    monkeypatch.setattr(packed, "REQUESTS", 4)
    check(replace(SPEC, num_heads=1, num_kv_heads=1), (3, 20, 1, 1, 2, 17, 5, 1, 9), facts)


def test_a_later_step_may_be_larger(facts: DeviceFacts) -> None:
    spec = replace(SPEC, rotary_dim=32)
    op = packed.PackedAttention(spec, facts)
    for lengths in ((5,), (30, 3), (2, 2)):
        check_results(drawn(cases.SUITE, spec, Requests(lengths)), op, facts)


# of a tile, which the interpreter's maximum warns of
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_row_that_is_not_finite_spoils_its_request_alone(facts: DeviceFacts) -> None:
    problem = drawn(cases.SUITE, SPEC, Requests((5, 20, 3)))
    problem.qkv[6] = float("nan")
    op = packed.PackedAttention(SPEC, facts)
    spoilt = problem.call(op, Place(facts.device))["out"].cpu().isnan().any(1)
    assert torch.equal(spoilt, torch.tensor([False] * 5 + [True] * 20 + [False] * 3))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 264}, "head_dim 264 is above 256"),
        ({"scale": 0.0}, "scale 0.0 is not positive"),
        ({"num_kv_heads": 3}, "not 4 for 3"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = packed.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert reason in verdict.reason
