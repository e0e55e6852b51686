"""FlashMLA is refused without its package, and called as it documents; here by a stand-in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.platforms.cuda.conftest import defect_of
from tests.platforms.triton.conftest import ON_DEVICE, device_facts
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, MlaAttentionSpec, StepShape
from hotshoe_conformance.cases.attention import Batch
from hotshoe_cuda import flashmla
from hotshoe_triton import latent

SPEC = MlaAttentionSpec(4, 512, 32, 64, 32, "bfloat16", "bfloat16", 64, 0.1)
H200 = replace(device_facts("sm_90", units=132), device="cpu")
CALLS: list[int] = []


def get_mla_metadata(*arguments: object, **options: object) -> tuple[SimpleNamespace, None]:
    return SimpleNamespace(lengths=None), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: SimpleNamespace,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute what the package does. Its signature is that of version 1.0, of 2026.

    A schedule is made by the first call that has it, and serves equal lengths alone.
    """
    made = tile_scheduler_metadata.lengths
    assert made is None or made == cache_seqlens.tolist()
    tile_scheduler_metadata.lengths = cache_seqlens.tolist()
    assert q.shape[1] == k_cache.shape[2] == 1 and k_cache.shape[3] == q.shape[3] == 576
    assert head_dim_v == 512 and k_cache.shape[1] == 64 and num_splits is None and causal
    assert {x.dtype for x in (block_table, cache_seqlens)} == {torch.int32}
    CALLS.append(len(q))
    out = []
    for query, table, length in zip(q[:, 0], block_table, cache_seqlens.tolist(), strict=True):
        rows = k_cache[table[: -(-length // 64)].long(), :, 0].flatten(0, 1)[:length].float()
        weights = (query.float() @ rows.T * softmax_scale).softmax(-1)
        out.append(weights @ rows[:, :head_dim_v])
    return torch.stack(out)[:, None].to(q.dtype), torch.empty(0)


@pytest.fixture
def package(library) -> None:
    functions = {f.__name__: f for f in (get_mla_metadata, flash_mla_with_kvcache)}
    library("flash_mla", "flash_mla", "1.0.0+02fe0d0", **functions)
    CALLS.clear()


@pytest.mark.skipif(ON_DEVICE, reason="interprets kernels, and there is a GPU")
@pytest.mark.parametrize("changes", [{}, {"num_heads": 7}, {"scale": 0.3}], ids=str)
def test_it_decodes_as_it_documents(package, changes) -> None:
    spec = replace(SPEC, **changes)
    assert flashmla.supports(spec, H200).score == 40
    decode = Batch(((1, 5), (1, 70), (1, 64)), spare=1)
    assert defect_of("mla_attention", flashmla.MlaAttention, spec, decode, H200) == ""
    assert set(CALLS) >= {3}


def test_prompts_are_left_to_triton(package, monkeypatch) -> None:
    found = torch.empty(0)
    monkeypatch.setattr(latent.MlaAttention, "_attend", lambda *_: found)
    op = flashmla.MlaAttention(SPEC, H200)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    shape = StepShape(1, starts, starts[1:], 3, 3)
    step = op.prepare(shape, CacheView(starts[None], starts))
    assert op._attend(torch.empty(3, 4, 96), found, found, step) is found
    assert not CALLS


def test_without_the_package_it_is_refused() -> None:
    assert flashmla.supports(SPEC, H200).reason == "package flash_mla is not installed"


def test_older_releases_fail_while_there_is_another_candidate(library) -> None:
    def needing(cache_seqlens: Tensor, heads: int, kv_heads: int) -> None:
        raise NotImplementedError

    library(
        "flash_mla",
        "flash_mla",
        "1.0.0",
        get_mla_metadata=needing,
        flash_mla_with_kvcache=flash_mla_with_kvcache,
    )
    with pytest.raises(TypeError, match="missing 3 required"):
        flashmla.MlaAttention(SPEC, H200)


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_100"), "no such kernel for sm_100"),
        (replace(SPEC, kv_dtype="int8"), H200, "int8: FlashMLA reads 8 bits for chosen rows"),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "float32 is not one of"),
        (replace(SPEC, block_size=32), H200, "(512, 64, 32), not (512, 64, 64)"),
        (replace(SPEC, latent_dim=256), H200, "(256, 64, 64)"),
    ],
)
def test_refusals(package, spec: MlaAttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = flashmla.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason
