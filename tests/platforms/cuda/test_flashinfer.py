"""FlashInfer is refused without its package, and its XQA called as documented; here by a stand-in.

What no request owns is NaN, and block tables name blocks that do not exist behind a request's end.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import replace

import pytest
import torch
from tests.platforms.cuda.conftest import attention_scores
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, CacheView, StepShape
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import PagedKV
from hotshoe_cuda import flashinfer
from hotshoe_triton.attention import Attention as Paged

SPEC = AttentionSpec(8, 2, 64, "bfloat16", "bfloat16", 16, 0.17)
H200 = DeviceFacts("cuda", "cpu", "NVIDIA H200", "sm_90", 1 << 37, 132)
B200 = DeviceFacts("cuda", "cpu", "NVIDIA B200", "sm_100", 1 << 37, 148)


class Xqa:
    """Stands in for `flashinfer.xqa.xqa` of 0.7, and says what a kernel would have overlooked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        seq_lens: Tensor,
        output: Tensor,
        workspace_buffer: Tensor,
        semaphores: Tensor,
        num_kv_heads: int,
        page_size: int,
        sinks: Tensor | None = None,
        q_scale: float | Tensor = 1.0,
        kv_scale: float | Tensor = 1.0,
        sliding_win_size: int = 0,
        kv_layout: str = "NHD",
        sm_count: int | None = None,
        enable_pdl: bool | None = None,
    ) -> None:
        self.calls += 1
        batch, beam, heads, dim = q.shape
        assert beam == 1 and output.shape == q.shape and output.dtype == q.dtype
        # It knows no strides of these: it takes their addresses.
        assert all(x.is_contiguous() for x in (q, output, page_table, seq_lens, semaphores))
        assert page_table.dtype == torch.int32 and len(page_table) == batch
        assert seq_lens.dtype == semaphores.dtype == torch.uint32 and seq_lens.shape == (batch, 1)
        assert workspace_buffer.dtype == torch.uint8 and not semaphores.any()
        assert semaphores.numel() >= batch * num_kv_heads
        for scale in (q_scale, kv_scale):  # a tensor's address is taken for that of a float
            assert isinstance(scale, float) or (scale.dtype, scale.shape) == (torch.float32, (1,))
        assert k_cache.dtype == v_cache.dtype and k_cache.dtype in (q.dtype, torch.float8_e4m3fn)
        assert kv_layout == "HND" and k_cache.shape[1:] == (num_kv_heads, page_size, dim)
        group = heads // num_kv_heads
        for row, length in enumerate(seq_lens[:, 0].tolist()):
            own = page_table[row, : -(-length // page_size)].long()
            first = max(length - sliding_win_size, 0) if sliding_win_size else 0
            k, v = (
                cache.float()[own].transpose(0, 1).flatten(1, 2)[:, first:length]
                for cache in (k_cache, v_cache)
            )
            if k_cache.dtype != q.dtype:  # one scale for both
                k, v = k * kv_scale, v * kv_scale
            k, v = (x.repeat_interleave(group, 0) for x in (k, v))
            scores = torch.einsum("hd,hkd->hk", q[row, 0].float(), k) * q_scale / dim**0.5
            if sinks is not None:
                assert sinks.dtype == torch.float32 and sinks.shape == (num_kv_heads, group)
                scores = torch.cat([scores, sinks.view(-1, 1)], 1)
            weights = scores.softmax(-1)[:, : k.shape[1]]
            output[row, 0] = torch.einsum("hk,hkd->hd", weights, v).to(q.dtype)


class Wrapper:
    """Stands in for `flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper` of 0.7."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str) -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "HND"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        window_left: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        plan = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(x.dtype == torch.int32 for x in plan) and causal
        assert ((paged_kv_last_page_len > 0) & (paged_kv_last_page_len <= page_size)).all()
        self.plan_of = [x.tolist() for x in plan]
        heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        window = None if window_left < 0 else window_left + 1
        self.spec = AttentionSpec(
            *heads, "bfloat16", "bfloat16", page_size, sm_scale, window=window
        )

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        starts, pages, indices, last = self.plan_of
        found = []
        for row, extra in enumerate(last):
            own = indices[pages[row] : pages[row + 1]]
            length = (len(own) - 1) * self.spec.block_size + extra
            k, v = (x[own].transpose(1, 2).flatten(0, 1)[:length] for x in paged_kv_cache)
            found.append(attend(self.spec, q[starts[row] : starts[row + 1]].float(), k, v, None))
        return torch.cat(found).to(q.dtype)


class Event:
    """Stands in for an event of a GPU."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def xqa(library, monkeypatch: pytest.MonkeyPatch) -> Xqa:
    """Install the package, as far as it is used, and the tools that it starts."""
    found = Xqa()
    library(flashinfer.PACKAGE, flashinfer.DISTRIBUTION, "0.7.2.post1")
    for name in ("", ".xqa", ".prefill"):
        fake = types.ModuleType(flashinfer.PACKAGE + name)
        fake.__spec__ = importlib.machinery.ModuleSpec(fake.__name__, None)
        fake.xqa, fake.BatchPrefillWithPagedKVCacheWrapper = found, Wrapper
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(flashinfer.torch.cuda, "Event", Event)
    monkeypatch.setattr(flashinfer.shutil, "which", lambda tool: f"/bin/{tool}")
    return found


@pytest.mark.parametrize("lengths", [[1], [1, 16, 70], [33, 200, 2, 17]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 8},
        {"num_kv_heads": 1, "head_dim": 128},
        {"window": 9},
        {"window": 1},
        {"sinks": True},
        {"block_size": 32, "sinks": True, "window": 40},
    ],
    ids=str,
)
def test_it_computes_what_the_reference_does(xqa, changes, lengths) -> None:
    spec = replace(SPEC, **changes)
    blocks = [-(-length // spec.block_size) for length in lengths]
    order = torch.randperm(sum(blocks) + 3).int()
    table = torch.full((len(lengths), max(blocks) + 2), 2**31 - 1, dtype=torch.int32)
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    cache = torch.full((2, sum(blocks) + 3, numel), float("nan"), dtype=torch.bfloat16)
    layout = flashinfer.Attention.layout
    paged = PagedKV(cache, layout, spec.block_size, spec.num_kv_heads, spec.head_dim)
    wide = torch.randn(len(lengths), spec.num_heads + 2, spec.head_dim).bfloat16()
    q = wide[:, : spec.num_heads]
    sinks = torch.randn(spec.num_heads) if spec.sinks else None
    expected = []
    for row, length in enumerate(lengths):
        own, order = order[: blocks[row]], order[blocks[row] :]
        table[row, : len(own)] = own
        k, v = (torch.randn(length, spec.num_kv_heads, spec.head_dim).bfloat16() for _ in "kv")
        positions = torch.arange(length)
        slots = own[positions // spec.block_size] * spec.block_size + positions % spec.block_size
        paged.write(k, v, slots)
        expected.append(attend(spec, q[row : row + 1].float(), k, v, sinks))
    # A stride between rows of the table, as the contract allows.
    found = flashinfer.Attention(spec, H200)(q, cache, _decoding(lengths, table[:, :-1]), sinks)
    assert found.dtype == q.dtype and found.is_contiguous() and xqa.calls == 2
    torch.testing.assert_close(
        found.float(), torch.cat(expected).flatten(1).float(), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("scales", ["tensor", "none"])
def test_an_8_bit_cache_with_scales_of_the_checkpoint(xqa, scales: str, monkeypatch) -> None:
    """Scales of keys and of values differ, and come when the operation is built; prompts go on."""
    spec = replace(SPEC, kv_dtype="float8_e4m3fn", kv_scales=scales, sinks=True, window=20)
    assert flashinfer.supports(spec, B200).accepted
    operation, length = flashinfer.Attention(spec, B200), 37
    cache = torch.full((2, 5, 16 * 2 * 64), float("nan")).to(torch.float8_e4m3fn)
    paged = PagedKV(cache.view(torch.uint8), operation.layout, 16, 2, 64)
    table, at = torch.tensor([[4, 0, 2, 7]], dtype=torch.int32), torch.arange(length)
    k, v = (torch.randn(length, 2, 64).to(torch.float8_e4m3fn) for _ in "kv")
    slots = table[0][at // 16] * 16 + at % 16
    paged.write(k.view(torch.uint8), v.view(torch.uint8), slots)
    q, sinks = torch.randn(1, 8, 64).bfloat16(), torch.randn(8)
    for pair in ((0.05, 1.5), (2.0, 0.3)) if scales == "tensor" else ((1.0, 1.0),):
        if scales == "tensor":
            operation.kv_scales = torch.tensor(pair)
        found = operation(q, cache.view(torch.uint8), _decoding([length], table), sinks)
        plain = (x.float() * scale for x, scale in zip((k, v), pair, strict=True))
        expected = attend(spec, q.float(), *plain, sinks).flatten(1)
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)
    monkeypatch.setattr(Paged, "__call__", lambda self, *step: "Triton's")
    starts = torch.tensor([0, 5], dtype=torch.int32)
    shape = StepShape(1, starts, starts[1:], 5, 5, ([5], [5]))
    prepared = operation.prepare(shape, CacheView(table, at[:5].int()))
    assert operation(q.repeat(5, 1, 1), cache.view(torch.uint8), prepared, sinks) == "Triton's"


@pytest.mark.parametrize("changes", [{}, {"window": 9}, {"head_dim": 128}], ids=str)
def test_prompts_run_as_they_were_planned(xqa, changes) -> None:
    spec, counts, lengths = replace(SPEC, **changes), [5, 1, 70], [20, 33, 70]
    layout = flashinfer.Attention.layout
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    cache = torch.full((2, 12, numel), float("nan"), dtype=torch.bfloat16)
    paged = PagedKV(cache, layout, spec.block_size, spec.num_kv_heads, spec.head_dim)
    table = torch.full((3, 6), 2**31 - 1, dtype=torch.int32)
    q = torch.randn(sum(counts), spec.num_heads, spec.head_dim).bfloat16()
    order, expected = torch.randperm(12).int(), []
    for row, length in enumerate(lengths):
        blocks = -(-length // spec.block_size)
        table[row, :blocks], order = order[:blocks], order[blocks:]
        k, v = (torch.randn(length, spec.num_kv_heads, spec.head_dim).bfloat16() for _ in "kv")
        at = torch.arange(length)
        paged.write(k, v, table[row][at // spec.block_size] * spec.block_size + at % 16)
        first = sum(counts[:row])
        expected.append(attend(spec, q[first : first + counts[row]].float(), k, v, None))
    operation = flashinfer.Attention(spec, H200)
    starts = torch.tensor([0, 5, 6, 76], dtype=torch.int32)
    shape = StepShape(3, starts, torch.tensor(lengths).int(), 70, 70, (counts, lengths))
    for _ in range(flashinfer.PLANS + 1):
        prepared = operation.prepare(shape, CacheView(table, torch.arange(76).int()))
        found = operation(q, cache, prepared, None)
    torch.testing.assert_close(
        found.float(), torch.cat(expected).flatten(1).float(), rtol=2e-2, atol=2e-2
    )


def test_nothing_is_planned_that_the_host_does_not_know(xqa) -> None:
    ints = torch.zeros(3, dtype=torch.int32)
    shape = StepShape(2, ints, ints[1:], 7, 7, None)
    view = CacheView(torch.zeros(2, 4, dtype=torch.int32), ints)
    known = replace(shape, host_lens=([7, 1], [7, 1]))
    for spec, asked in ((SPEC, shape), (replace(SPEC, sinks=True), known)):
        prepared = flashinfer.Attention(spec, H200).prepare(asked, view)
        assert type(prepared) is AttentionMetadata


def _decoding(lengths: list[int], table: Tensor) -> AttentionMetadata:
    ints = torch.arange(len(lengths) + 1, dtype=torch.int32)
    return AttentionMetadata(
        len(lengths), ints, torch.tensor(lengths, dtype=torch.int32), table, ints[:-1], 1, 999
    )


@pytest.mark.parametrize(
    ("num_reqs", "max_query_len", "num_tokens"), [(2, 5, 6), (2, 1, 3), (0, 0, 0), (0, 1, 0)]
)
def test_every_other_step_is_left_to_triton(
    xqa, monkeypatch: pytest.MonkeyPatch, num_reqs: int, max_query_len: int, num_tokens: int
) -> None:
    seen = []
    monkeypatch.setattr(Paged, "__call__", lambda self, *step: seen.append(step))
    operation = flashinfer.Attention(SPEC, H200)
    ints = torch.zeros(num_reqs + 1, dtype=torch.int32)
    table = torch.zeros(num_reqs, 4, dtype=torch.int32)
    metadata = AttentionMetadata(num_reqs, ints, ints[1:], table, ints, max_query_len, 50)
    step = (torch.zeros(num_tokens, 8, 64), torch.zeros(2, 4, 2048), metadata, None)
    operation(*step)
    assert seen == [step] and xqa.calls == 1


def test_it_follows_a_cache_that_was_allocated_anew(xqa) -> None:
    operation = flashinfer.Attention(SPEC, H200)
    q, table = torch.zeros(1, 8, 64).bfloat16(), torch.zeros(1, 1, dtype=torch.int32)
    for value in (1.0, 2.0):
        cache = torch.full((2, 4, 2048), value).bfloat16()
        assert (operation(q, cache, _decoding([3], table), None) == value).all()


def test_what_cannot_be_compiled_is_known_when_it_is_built(
    xqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Ninja build failed")

    monkeypatch.setattr(sys.modules["flashinfer.xqa"], "xqa", fail)
    with pytest.raises(RuntimeError, match="Ninja build failed"):
        flashinfer.Attention(SPEC, H200)


def test_without_the_package_it_is_refused() -> None:
    assert "package flashinfer-python is not installed" in flashinfer.supports(SPEC, H200).reason


def test_other_releases_are_refused(library) -> None:
    library(flashinfer.PACKAGE, flashinfer.DISTRIBUTION, "0.8.0")
    reason = flashinfer.supports(SPEC, H200).reason
    assert "flashinfer-python 0.8.0 is installed, and known are 0.7" in reason


@pytest.mark.parametrize(
    ("spec", "facts", "reason"),
    [
        (SPEC, replace(H200, arch="sm_80"), "no kernel for architecture sm_80, but for sm_90, "),
        (replace(SPEC, dtype="float32", kv_dtype="float32"), H200, "element type float32"),
        (replace(SPEC, kv_dtype="float8_e5m2"), B200, "float8_e4m3fn, not of float8_e5m2"),
        (
            replace(SPEC, kv_dtype="int8", kv_scales="token"),
            B200,
            "dtype bfloat16 or of float8_e4m3fn, not of int8",
        ),
        (
            replace(SPEC, kv_dtype="float8_e4m3fn", kv_scales="token"),
            B200,
            "one scale for a layer's cache, none for each token",
        ),
        (
            replace(SPEC, kv_dtype="float8_e4m3fn", kv_scales="tensor"),
            H200,
            "on sm_90 XQA rounds queries and weights to float8_e4m3fn as well",
        ),
        (replace(SPEC, head_dim=96), H200, "head_dim 96, but for 64, 128, 256"),
        (replace(SPEC, block_size=256), H200, "block_size 256"),
        (replace(SPEC, num_heads=96), H200, "more than 32 heads share a KV head (48)"),
        (replace(SPEC, softcap=30.0), H200, "soft caps"),
    ],
)
def test_refusals(xqa, spec: AttentionSpec, facts: DeviceFacts, reason: str) -> None:
    verdict = flashinfer.supports(spec, facts)
    assert not verdict.accepted and reason in verdict.reason


def test_without_a_compiler_it_is_refused(xqa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer.shutil, "which", {"ninja": "/bin/ninja"}.get)
    reason = flashinfer.supports(SPEC, H200).reason
    assert "compiles its kernels by nvcc, which is not on the PATH" in reason


def test_others_are_preferred_as_measured(xqa) -> None:
    assert flashinfer.supports(SPEC, H200).accepted
    facts = replace(H200, features=frozenset({"wgmma", "tma"}))
    scores = attention_scores(SPEC, facts)
    assert scores["cudnn"] > scores["triton"] > scores["flashinfer"] > scores["triton_alone"]


def test_looking_for_it_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer.importlib, "import_module", lambda name: pytest.fail("imported"))
    assert not flashinfer.supports(SPEC, H200).accepted
