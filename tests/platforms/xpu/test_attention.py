"""Collected keys and values give the reference's results; here on the host."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platforms.paged import Requests, step
from tests.platforms.xpu.conftest import on_host

from hotshoe.slots import Alibi, AttentionSpec
from hotshoe_xpu import attention
from hotshoe_xpu.attention import Attention, stretches, supports

SPEC = AttentionSpec(8, 2, 32, "float32", "float32", 16, 0.17)


def check(spec: AttentionSpec, requests: Requests, hosted: bool = True) -> None:
    q, cache, metadata, expected = step(spec, requests, Attention.layout, hosted)
    found = Attention(spec, on_host())(q, cache, metadata, None)
    assert found.dtype == q.dtype and found.is_contiguous()
    tolerance = 1e-5 if spec.dtype == "float32" else 2e-2
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 8},
        {"num_kv_heads": 1},
        {"num_heads": 14},
        {"head_dim": 80},
        {"block_size": 32},
        {"window": 9},
        {"window": 40},
        {"dtype": "bfloat16", "kv_dtype": "bfloat16"},
        {"dtype": "float16", "kv_dtype": "float16"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "requests",
    [
        [(1, 1), (1, 16), (1, 17), (1, 70)],
        [(5, 5)],
        [(70, 70)],
        [(33, 50)],
        [(1, 40), (7, 7), (1, 3), (1, 90), (16, 33), (1, 1)],
    ],
    ids=["decode", "prompt", "longer prompt", "chunk", "mixed"],
)
def test_against_the_reference(changes: dict[str, object], requests: Requests) -> None:
    check(replace(SPEC, **changes), requests)


REQUEST = st.tuples(st.integers(1, 20), st.integers(0, 60)).map(lambda r: (r[0], r[0] + r[1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=6), st.sampled_from([None, 5, 33]))
def test_any_step(requests: Requests, window: int | None) -> None:
    check(replace(SPEC, window=window), requests)


def test_lengths_that_lie_on_the_device_alone() -> None:
    check(SPEC, [(1, 9), (4, 20)], hosted=False)


def test_pieces_that_fit(monkeypatch) -> None:
    monkeypatch.setattr(attention, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(attention, "MASK_CELLS", 200)
    check(SPEC, [(1, random.randrange(1, 60)) for _ in range(9)] + [(30, 60)])


def test_a_batch_without_requests() -> None:
    q, cache, metadata, _ = step(SPEC, [(1, 4)], Attention.layout)
    empty = replace(metadata, num_reqs=0, host_lens=([], []))
    assert Attention(SPEC, on_host())(q[:0], cache, empty, None).shape == (0, 256)


@given(st.lists(st.integers(1, 3), max_size=9))
def test_stretches_cover_a_step_in_order(counts: list[int]) -> None:
    found = list(stretches(counts))
    assert [i for first, last in found for i in range(first, last)] == list(range(len(counts)))
    for first, last in found:
        assert counts[first:last] == [1] * (last - first) or last == first + 1
    runs = [counts[first] == 1 for first, _ in found]
    assert not any(a and b for a, b in itertools.pairwise(runs)), "runs are whole"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"softcap": 30.0}, "soft caps"),
        ({"sinks": True}, "sinks"),
        ({"alibi": Alibi(64)}, "ALiBi"),
        ({"kv_dtype": "bfloat16"}, "differs"),
        ({"dtype": "float64", "kv_dtype": "float64"}, "float64"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = supports(replace(SPEC, **changes), on_host())
    assert not verdict.accepted and reason in verdict.reason
