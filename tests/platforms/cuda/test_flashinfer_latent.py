"""FlashInfer's latent attention is refused without its package, and called as it documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import device_facts
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, CacheView, MlaAttentionSpec, StepShape
from hotshoe.slots.reference.mla_attention import MlaAttention
from hotshoe_cuda import flashinfer, flashinfer_latent
from hotshoe_triton import latent

SPEC = MlaAttentionSpec(4, 512, 32, 64, 32, "bfloat16", "bfloat16", 16, 0.1)
H200 = replace(device_facts("sm_90", units=132), device="cpu")
RUNS: list[int] = []


class Event:
    """Stands in for an event of a GPU."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class Wrapper:
    """Stands in for `flashinfer.mla.BatchMLAPagedAttentionWrapper` of 0.7."""

    def __init__(self, float_workspace_buffer: Tensor, use_cuda_graph: bool = False) -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and not use_cuda_graph

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        plan = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        assert all(x.dtype == torch.int32 for x in plan) and causal and not use_profiler
        assert (head_dim_ckv, head_dim_kpe) == (512, 64) and q_data_type == kv_data_type
        self.plan_of = [x.tolist() for x in plan]
        self.sizes, self.scale = (num_heads, page_size), sm_scale

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor) -> Tensor:
        heads, size = self.sizes
        assert q_nope.shape[1:] == (heads, 512) and q_pe.shape == (*q_nope.shape[:2], 64)
        assert ckv_cache.shape[1:] == (size, 512) and kpe_cache.shape[1:] == (size, 64)
        starts, pages, indices, lengths = self.plan_of
        RUNS.append(len(q_nope))
        out = torch.empty_like(q_nope)
        for row, length in enumerate(lengths):
            own = indices[pages[row] : pages[row + 1]]
            assert len(own) == -(-length // size)
            latents, keys = (x[own].flatten(0, 1)[:length].float() for x in (ckv_cache, kpe_cache))
            queries = slice(starts[row], starts[row + 1])
            scores = q_nope[queries].float() @ latents.T + q_pe[queries].float() @ keys.T
            count = starts[row + 1] - starts[row]
            ends = torch.arange(length - count, length)[:, None, None]
            hidden = torch.arange(length) > ends
            weights = (scores * self.scale).masked_fill(hidden, -torch.inf).softmax(-1)
            out[queries] = (weights @ latents).to(out.dtype)
        return out


@pytest.fixture
def package(library, monkeypatch: pytest.MonkeyPatch) -> None:
    library(
        "flashinfer.mla",
        flashinfer.DISTRIBUTION,
        "0.7.2",
        BatchMLAPagedAttentionWrapper=Wrapper,
    )
    monkeypatch.setattr(flashinfer.torch.cuda, "Event", Event)
    monkeypatch.setattr(flashinfer_latent.shutil, "which", lambda tool: f"/bin/{tool}")
    RUNS.clear()


@pytest.mark.parametrize("changes", [{}, {"num_heads": 7, "scale": 0.3}, {"block_size": 64}])
@pytest.mark.parametrize("batch", [((1, 5), (1, 70), (1, 64)), ((3, 3), (1, 33), (6, 50))], ids=str)
def test_it_computes_as_it_documents(package, changes: dict[str, object], batch) -> None:
    """What no request owns is NaN, and block tables name no block behind a request's end."""
    spec = replace(SPEC, **changes)
    assert flashinfer_latent.supports(spec, H200).score == 30
    counts, lengths = ([*part] for part in zip(*batch, strict=True))
    blocks = [-(-length // spec.block_size) for length in lengths]
    order = torch.randperm(sum(blocks) + 2).int()
    table = torch.full((len(lengths), max(blocks) + 1), 2**31 - 1, dtype=torch.int32)
    cache = torch.full((sum(blocks) + 2, spec.block_size, 576), float("nan"), dtype=torch.bfloat16)
    for row, (length, own) in enumerate(zip(lengths, order[:-2].split(blocks), strict=True)):
        table[row, : len(own)] = own
        at = torch.arange(length)
        places = own[at // spec.block_size].long(), at % spec.block_size
        cache[places] = torch.randn(length, 576).bfloat16()
    q = torch.randn(sum(counts), spec.num_heads, 96).bfloat16()
    up = 0.1 * torch.randn(spec.num_heads, spec.nope_dim + spec.v_dim, 512)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    shape = StepShape(3, starts, torch.tensor(lengths).int(), max(counts), max(lengths))
    view, found = CacheView(table, starts), []
    for build, known in ((MlaAttention, None), (flashinfer_latent.MlaAttention, (counts, lengths))):
        op = build(spec, H200)
        op.load(up)
        RUNS.clear()
        found.append(op(q, cache, op.prepare(replace(shape, host_lens=known), view)).float())
    assert [sum(counts)] == RUNS
    assert 0.4 < found[0].std() < 5  # so that this is the rounding of q and of averages
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=0.1)


def test_steps_that_the_host_does_not_know_are_left_to_triton(package, monkeypatch) -> None:
    found = torch.empty(0)
    monkeypatch.setattr(latent.MlaAttention, "_attend", lambda *_: found)
    op = flashinfer_latent.MlaAttention(SPEC, H200)
    RUNS.clear()
    starts = torch.tensor([0, 1], dtype=torch.int32)
    step = op.prepare(StepShape(1, starts, starts[1:], 1, 3), CacheView(starts[None], starts))
    assert type(step) is AttentionMetadata
    assert op._attend(torch.empty(1, 4, 96), found, found, step) is found
    assert not RUNS


def test_without_the_package_it_is_refused() -> None:
    reason = flashinfer_latent.supports(SPEC, H200).reason
    assert reason.startswith("package flashinfer-python is not installed")


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_100"), "no such kernel for sm_100"),
        (replace(SPEC, kv_dtype="int8"), H200, "int8: FlashInfer reads rows of dtype bfloat16"),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "float32 is not one of"),
        (replace(SPEC, latent_dim=256), H200, "(256, 64), not (512, 64)"),
    ],
)
def test_refusals(package, spec: MlaAttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = flashinfer_latent.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_it_needs_a_compiler(package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_latent.shutil, "which", lambda tool: None)
    assert "by nvcc, ninja, which is not" in flashinfer_latent.supports(SPEC, H200).reason
