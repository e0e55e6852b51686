"""FlashAttention 3 is refused without the package, and called as it documents; by a stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from tests.platforms.cuda.conftest import attention_scores
from tests.platforms.paged import step
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Alibi, AttentionMetadata, AttentionSpec
from hotshoe_cuda import flash3
from hotshoe_triton import attention

SPEC = AttentionSpec(8, 2, 32, "bfloat16", "bfloat16", 16, 0.17)
H200 = DeviceFacts("cuda", "cpu", "NVIDIA H200", "sm_90", 1 << 37, 132)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Compute what the package does, which aligns the mask to the end of keys and queries.

    It wants the types, shapes and strides that are asserted, and computes nothing behind the last
    query. Its signature is that of version 3.0.
    """
    assert causal and q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert {x.dtype for x in (cache_seqlens, page_table, cu_seqlens_q)} == {torch.int32}
    assert page_table.stride(-1) == 1
    assert cache_seqlens.is_contiguous() and cu_seqlens_q.is_contiguous()
    assert len(cache_seqlens) == len(page_table) == len(cu_seqlens_q) - 1
    counts = cu_seqlens_q.diff().tolist()
    assert max_seqlen_q == max(counts)
    page_size, heads, dim = k_cache.shape[1:]
    out = []
    for part, table, length in zip(
        q.split(counts), page_table, cache_seqlens.tolist(), strict=True
    ):
        own = table[: -(-length // page_size)].long()
        k, v = (cache[own].reshape(-1, heads, dim)[:length] for cache in (k_cache, v_cache))
        k, v = (x.float().repeat_interleave(q.shape[1] // heads, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", part.float(), k) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        behind = (torch.arange(length) - (length - len(part)))[None] - torch.arange(len(part))[
            :, None
        ]
        seen = behind <= window_size[1]
        if window_size[0] >= 0:
            seen &= behind >= -window_size[0]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(out).to(q.dtype)


@pytest.fixture
def package(library) -> None:
    functions = {"flash_attn_with_kvcache": flash_attn_with_kvcache}
    library(flash3.PACKAGE, flash3.DISTRIBUTION, "3.0.0b1", **functions)


@pytest.mark.parametrize(
    "requests", [[(5, 5)], [(2, 2), (1, 16), (1, 70)], [(33, 70), (1, 40), (17, 17)]], ids=str
)
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_kv_heads": 8}, {"window": 9}, {"window": 1}, {"softcap": 3.0}, {"block_size": 32}],
    ids=str,
)
def test_it_computes_what_the_reference_does(package, changes, requests) -> None:
    spec = replace(SPEC, **changes)
    q, cache, metadata, expected = step(spec, requests, flash3.Attention.layout)
    found = flash3.Attention(spec, H200)(q, cache, metadata, None)
    assert found.dtype == q.dtype and found.is_contiguous()
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("num_reqs", [0, 3])
def test_steps_that_only_decode_are_left_to_triton(
    package, monkeypatch: pytest.MonkeyPatch, num_reqs: int
) -> None:
    found = torch.randn(num_reqs, 256)
    monkeypatch.setattr(attention.Attention, "__call__", lambda *_: found)
    op = flash3.Attention(SPEC, H200)
    monkeypatch.setattr(op, "_prompts", lambda *_, **__: pytest.fail("FlashAttention was called"))
    starts = torch.arange(num_reqs + 1, dtype=torch.int32)
    metadata = AttentionMetadata(
        num_reqs, starts, starts[1:], starts[1:, None], starts[1:], min(num_reqs, 1), num_reqs
    )
    q = torch.randn(num_reqs, SPEC.num_heads, SPEC.head_dim).bfloat16()
    assert op(q, torch.zeros(0), metadata, None) is found


def test_without_the_package_it_is_refused() -> None:
    assert flash3.supports(SPEC, H200).reason == "package flash_attn_3 is not installed"


def test_other_releases_are_refused(library) -> None:
    library(flash3.PACKAGE, flash3.DISTRIBUTION, "3.1.0")
    reason = flash3.supports(SPEC, H200).reason
    assert reason == "flash_attn_3 3.1.0 is installed, and known are 3.0"


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_80"), "no kernels for sm_80"),
        (SPEC, replace(H200, arch="sm_100"), "no kernels for sm_100"),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "float32 is not one of"),
        (replace(SPEC, kv_dtype="int8", kv_scales="token"), H200, "of int8 are not read, but of"),
        (replace(SPEC, kv_dtype="float8_e5m2"), H200, "of float8_e5m2 are not read, but of"),
        (
            replace(SPEC, kv_dtype="float8_e4m3fn", kv_scales="tensor"),
            H200,
            "multiplied by queries rounded to that, too, which are of bfloat16 here",
        ),
        (replace(SPEC, sinks=True), H200, "sinks"),
        (replace(SPEC, alibi=Alibi(64)), H200, "ALiBi"),
        (replace(SPEC, head_dim=512), H200, "head_dim 512"),
        (replace(SPEC, block_size=128), H200, "block_size 128 exceeds 64"),
        (replace(SPEC, head_dim=256, block_size=64), H200, "block_size 64 exceeds 32"),
    ],
)
def test_refusals(package, spec: AttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = flash3.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_what_a_build_leaves_out_is_found_out_while_there_is_another_candidate(
    package, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_softcap(*args: object, softcap: float, **options: object) -> Tensor:
        if softcap:
            raise RuntimeError("This flash attention build does not support tanh softcapping.")
        return flash_attn_with_kvcache(*args, softcap=softcap, **options)

    monkeypatch.setattr(sys.modules[flash3.PACKAGE], "flash_attn_with_kvcache", without_softcap)
    flash3.Attention(SPEC, H200)
    with pytest.raises(RuntimeError, match="does not support tanh softcapping"):
        flash3.Attention(replace(SPEC, softcap=5.0), H200)


def test_it_is_preferred_where_it_is_installed(package) -> None:
    facts = replace(H200, features=frozenset({"wgmma", "tma"}))
    scores = attention_scores(SPEC, facts)
    assert scores["flash3"] > scores["cudnn"] > scores["triton"] > scores["triton_alone"]


def test_looking_for_it_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash3.importlib, "import_module", lambda name: pytest.fail("imported"))
    assert not flash3.supports(SPEC, H200).accepted
