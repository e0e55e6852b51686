"""FlashAttention 4 is refused without its package, and called as it documents; by a stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.platforms.cuda.conftest import attention_scores, defect_of
from tests.platforms.triton.conftest import device_facts
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec
from hotshoe_conformance.cases.attention import Batch
from hotshoe_cuda import flash4
from hotshoe_triton import attention

SPEC = AttentionSpec(4, 2, 64, "bfloat16", "bfloat16", 16, 0.17)
H200 = replace(device_facts("sm_90", units=132), device="cpu")
PROMPTS = Batch(((5, 5), (1, 40), (17, 33)), gap=128, spare=2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, None]:
    """Compute what the package does, which aligns the mask to the end of keys and queries.

    Its signature is that of version 4.0, as far as arguments are used.
    """
    assert causal and cu_seqlens_k is None
    assert cu_seqlens_q is not None and seqused_k is not None and page_table is not None
    assert {x.dtype for x in (cu_seqlens_q, seqused_k, page_table)} == {torch.int32}
    assert page_table.stride(-1) == q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert page_table.shape[0] == len(seqused_k) == len(cu_seqlens_q) - 1
    counts = cu_seqlens_q.diff().tolist()
    assert max_seqlen_q == max(counts)
    size, heads, dim = k.shape[1:]
    out = []
    for part, table, length in zip(q.split(counts), page_table, seqused_k.tolist(), strict=True):
        own = table[: -(-length // size)].long()
        keys, values = (x[own].reshape(-1, heads, dim)[:length].float() for x in (k, v))
        keys, values = (x.repeat_interleave(q.shape[1] // heads, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", part.float(), keys) * softmax_scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        own_at = torch.arange(length - len(part), length)[:, None]
        seen = torch.arange(length) <= own_at
        if window_size[0] is not None:
            assert window_size[1] == 0
            seen &= torch.arange(length) >= own_at - window_size[0]
        scores = scores.masked_fill(~seen, float("-inf"))
        if learnable_sink is not None:
            column = learnable_sink.view(-1, 1, 1).expand(-1, len(part), 1)
            scores = torch.cat([scores, column], -1)
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], values))
    return torch.cat(out).to(q.dtype), None


@pytest.fixture
def package(library) -> None:
    name = "flash_attn.cute"
    library(name, "flash-attn-4", "4.0.0b21", flash_attn_varlen_func=flash_attn_varlen_func)


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_kv_heads": 4}, {"window": 9}, {"softcap": 3.0}, {"sinks": True}, {"head_dim": 96}],
    ids=str,
)
def test_it_is_called_as_it_documents(package, changes) -> None:
    spec = replace(SPEC, **changes)
    assert flash4.supports(spec, H200).score == 40
    assert defect_of("attention", flash4.Attention, spec, PROMPTS, H200) == ""


def test_steps_that_only_decode_are_left_to_triton(package, monkeypatch) -> None:
    found = torch.empty(0)
    monkeypatch.setattr(attention.Attention, "__call__", lambda *_: found)
    starts = torch.arange(4, dtype=torch.int32)
    step = AttentionMetadata(3, starts, starts[1:], starts[1:, None], starts[1:], 1, 3)
    op = flash4.Attention(SPEC, H200)
    assert op(torch.zeros(3, 4, 64), found, step, None) is found


def test_it_is_asked_for_by_name(package) -> None:
    scores = attention_scores(SPEC, H200)
    assert scores["triton"] > scores["flash4"] > 0


def test_without_the_package_it_is_refused() -> None:
    assert flash4.supports(SPEC, H200).reason == "package flash-attn-4 is not installed"


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_120"), "no blocks on sm_120"),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "float32 is not one of"),
        (replace(SPEC, kv_dtype="fp8_e4m3"), H200, "differs from dtype"),
        (replace(SPEC, head_dim=256), H200, "head_dim 256"),
        (replace(SPEC, block_size=128), H200, "block_size 128 exceeds 64"),
    ],
)
def test_refusals(package, spec: AttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = flash4.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason
