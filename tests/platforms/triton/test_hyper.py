"""Residual streams against float64: streams, tokens, splits, refusals."""

from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import hyper_connection as cases
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_triton import hyper

SPEC, Streams = cases.BASE, cases.Streams
VARIATIONS = [
    {"ends": True},
    {"count": 1},
    {"count": 3, "iterations": 2},
    {"count": 8, "eps": 0.0},
    {"hidden_size": 1},
    {"hidden_size": 600},
    {"iterations": 1},
    {"eps": 0.1, "norm_eps": 0.5},
]


def check(spec, steps, facts) -> None:
    assert hyper.supports(spec, facts).accepted
    check_results(drawn(cases.SUITE, spec, steps), hyper.HyperConnection(spec, facts), facts)


@pytest.mark.parametrize("changes", VARIATIONS, ids=str)
def test_variations(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), Streams(5), facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [Streams(0), Streams(1), Streams(19, False)], ids=str)
def test_streams(facts: DeviceFacts, shape: cases.Streams, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), shape, facts)


def test_many_tokens_take_larger_tiles(facts: DeviceFacts, monkeypatch) -> None:
    monkeypatch.setattr(hyper, "MANY", 16)
    check(replace(SPEC, dtype="bfloat16"), Streams(21), facts)


def test_channels_are_split_among_all_units(facts: DeviceFacts, monkeypatch) -> None:
    """More parts than are added up at once."""
    monkeypatch.setattr(hyper, "PARTS", (8, 8))
    spec, wide = replace(SPEC, hidden_size=64 * 5), replace(facts, compute_units=132)
    assert hyper.HyperConnection(spec, wide)._per(4 * 132, 64) == 64
    check(spec, Streams(2), wide)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 9}, "9 streams are above 8"),
        ({"mixes": False}, "streams that do not mix"),
        ({"magnitude": 1.0}, "a magnitude of 1.0, not 2"),
        ({"iterations": 0}, "at least once, not 4 of them 0 times"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = hyper.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert reason in verdict.reason
