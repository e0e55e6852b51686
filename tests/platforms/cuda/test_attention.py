"""Long prompts beside everything else: how a step is split, and that its parts fit together."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Alibi, AttentionMetadata, AttentionSpec
from hotshoe_cuda import attention
from hotshoe_cuda.attention import LONG, is_long, parts
from hotshoe_triton.attention import Attention as Paged

SPEC = AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 32, 128**-0.5)
H200 = DeviceFacts(
    "cuda", "cuda:0", "NVIDIA H200", "sm_90", 1 << 37, 132, frozenset({"wgmma", "tma"})
)
A100 = DeviceFacts("cuda", "cuda:0", "NVIDIA A100", "sm_80", 1 << 37, 108)
REQUEST = st.one_of(
    st.just((1, 700)), st.just((40, 40)), st.just((LONG, LONG)), st.just((LONG, LONG + 9))
)


@given(st.lists(REQUEST, min_size=1, max_size=9))
def test_parts_cover_a_step_in_order(requests: list[tuple[int, int]]) -> None:
    counts, lengths = ([r[i] for r in requests] for i in (0, 1))
    found = parts(counts, lengths)
    assert [i for first, last, _ in found for i in range(first, last)] == list(range(len(requests)))
    for first, last, at in found:
        assert at == sum(counts[:first])
        flags = {is_long(*requests[i]) for i in range(first, last)}
        assert len(flags) == 1
        assert flags == {False} or last == first + 1
    for (_, _, _), (first, _, _) in itertools.pairwise(found):
        assert is_long(*requests[first]) or is_long(*requests[first - 1])


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, A100, "faster on sm_90 alone, as far as is known, not on sm_80"),
        (replace(SPEC, window=100), H200, "windows"),
        (replace(SPEC, softcap=30.0), H200, "soft caps"),
        (replace(SPEC, sinks=True), H200, "sinks"),
        (replace(SPEC, alibi=Alibi(64)), H200, "ALiBi"),
        (replace(SPEC, head_dim=256), H200, "exceeds 128"),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "no kernel"),
        (replace(SPEC, block_size=24), H200, "power of two"),
    ],
)
def test_refusals(spec: AttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = attention.supports(spec, facts)
    assert not verdict.accepted
    assert reason in verdict.reason


def test_it_is_preferred_where_it_serves() -> None:
    verdict = attention.supports(SPEC, H200)
    assert verdict.score == 60


def test_a_mixed_step_equals_the_paged_kernels(gpu: str) -> None:
    requests = [(1, 513), (LONG, LONG), (LONG + 77, LONG + 77), (300, 900), (5, 5), (1, 1)]
    counts, lengths = ([r[i] for r in requests] for i in (0, 1))
    blocks = [-(-length // SPEC.block_size) for length in lengths]
    table = torch.zeros(len(requests), max(blocks), dtype=torch.int32)
    order = torch.randperm(sum(blocks)).int().split(blocks)
    for row, ids in zip(table, order, strict=True):
        row[: len(ids)] = ids
    numel = SPEC.block_size * SPEC.num_kv_heads * SPEC.head_dim
    cache = torch.randn(2, sum(blocks), numel, device=gpu).bfloat16()
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(sum(counts), 40, SPEC.head_dim, device=gpu).bfloat16()[:, : SPEC.num_heads]
    metadata = AttentionMetadata(
        len(requests),
        starts.to(gpu),
        torch.tensor(lengths, dtype=torch.int32, device=gpu),
        table.to(gpu),
        torch.zeros(sum(counts), dtype=torch.int32, device=gpu),
        max(counts),
        max(lengths),
        (counts, lengths),
    )
    expected = Paged(SPEC, H200)(q, cache, metadata, None)
    found = attention.Attention(SPEC, H200)(q, cache, metadata, None)
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert error < 6e-3
    assert found.is_contiguous()
