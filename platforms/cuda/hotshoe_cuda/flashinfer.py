"""Candidate `flashinfer` of slot `attention`: steps that only decode by XQA, prompts by a wrapper.

The wrapper for prompts wants a plan of every step, made on the host in `prepare`. XQA reads block
tables and lengths on the device, so that a recorded step can repeat it. Steps that are recorded
with prompts in them, prompts that see sinks, and prompts over 8-bit caches are left to Triton.
Kernels are compiled for a
specification when the operation is built, and kept in FlashInfer's cache on disk. Source:
`flashinfer.xqa.xqa` and `flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper` of
flashinfer-ai/flashinfer, whose layout `HND` is that of the Triton kernels.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
    CacheView,
    StepShape,
    Verdict,
    accept_unless,
    whole_step,
)
from hotshoe_triton import attention
from hotshoe_triton.packages import hindrance

#: Below Triton's: on an H200 it is faster for a single long sequence alone.
SCORE = 30
PACKAGE = "flashinfer"
DISTRIBUTION, RELEASES = "flashinfer-python", ("0.7",)
#: The 8-bit type that XQA reads, and where it multiplies such keys by queries of 8 bits as well.
EIGHT_BITS, ROUNDING = "float8_e4m3fn", ("sm_90",)
#: What FlashInfer starts to compile a kernel.
TOOLS = ("nvcc", "ninja")
ARCHS = ("sm_90", "sm_100", "sm_120")
DTYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64, 128)
MAX_GROUP = 32
#: Counters by which the programs that share a KV head of a request find out which ends last.
SEMAPHORES = 1 << 16
#: Bytes of a program's partial result, beside its values: maxima, sums and alignment.
STATS_BYTES = 1024
#: What the wrapper keeps partial results of prompts in.
WORKSPACE_BYTES = 128 << 20
#: Plans that may be on their way to the device at once; each has host memory of its own.
PLANS = 3


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what XQA is written for; the rest as for Triton, whose cache it reads."""
    absent = hindrance(DISTRIBUTION, RELEASES)
    missing = ", ".join(tool for tool in TOOLS if shutil.which(tool) is None)
    group = spec.num_heads // spec.num_kv_heads
    refusals = {
        absent: bool(absent),
        _none_for("architecture", facts.arch, ARCHS): facts.arch not in ARCHS,
        _none_for("element type", spec.dtype, DTYPES): spec.dtype not in DTYPES,
        _none_for("head_dim", spec.head_dim, HEAD_DIMS): spec.head_dim not in HEAD_DIMS,
        _none_for("block_size", spec.block_size, BLOCK_SIZES): spec.block_size not in BLOCK_SIZES,
        f"more than {MAX_GROUP} heads share a KV head ({group})": group > MAX_GROUP,
        "soft caps are not computed": spec.softcap is not None,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
        f"FlashInfer compiles its kernels by {missing}, which is not on the PATH": bool(missing),
    }
    refusals |= _cache_refusals(spec, facts)
    paged = attention.supports(spec, facts)
    note = "FlashInfer's XQA for steps that only decode"
    return accept_unless(refusals, SCORE, note) if paged.accepted else paged


def _cache_refusals(spec: AttentionSpec, facts: DeviceFacts) -> dict[str, bool]:
    eight_bits = spec.kv_dtype == EIGHT_BITS
    return {
        f"XQA reads keys and values of dtype {spec.dtype} or of {EIGHT_BITS}, not of "
        f"{spec.kv_dtype}": spec.kv_dtype not in (spec.dtype, EIGHT_BITS),
        "XQA has one scale for a layer's cache, none for each token": spec.kv_scales == "token",
        f"on {facts.arch} XQA rounds queries and weights to {spec.kv_dtype} as well": eight_bits
        and facts.arch in ROUNDING,
    }


def _none_for(what: str, value: object, known: tuple[object, ...]) -> str:
    return f"XQA has no kernel for {what} {value}, but for {', '.join(map(str, known))}"


@dataclass(slots=True)
class PlannedStep(AttentionMetadata):
    """A step, and the wrapper that planned it."""

    wrapper: Any = None


class Plans:
    """One of FlashInfer's wrappers, several times, to be used in turn.

    A plan is copied to the device behind the steps before it, from host memory that its wrapper
    writes again at the next plan. So a wrapper waits until its last copy has been read.

    Args:
        make: Makes a wrapper that keeps partial results in the memory it is given.
        question: What each plan says beside lengths.
        block_size: Tokens of a page.
        device: Where steps run.
        whole: A plan takes whole lengths, and not those in the last pages.
    """

    def __init__(
        self,
        make: Callable[[Tensor], Any],
        question: Mapping[str, object],
        block_size: int,
        device: str,
        whole: bool = False,
    ) -> None:
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._turns = [(make(workspace), torch.cuda.Event()) for _ in range(PLANS)]
        self._question, self._block_size, self._whole = dict(question), block_size, whole

    def prepare(self, shape: StepShape, view: CacheView, least: int = 1) -> AttentionMetadata:
        """Plan a step whose lengths the host knows, of at least so many tokens of some request."""
        step = whole_step(shape, view)
        known = step.host_lens
        if known is None or step.max_query_len < least or not step.num_reqs:
            return step
        wrapper = self(list(known[0]), list(known[1]), step.block_table)
        values = {field.name: getattr(step, field.name) for field in fields(step)}
        return PlannedStep(**values, wrapper=wrapper)

    def __call__(self, counts: list[int], lengths: list[int], table: Tensor) -> Any:
        """Plan requests of so many tokens, at whose end they have such lengths."""
        wrapper, copied = self._turns[0]
        self._turns.append(self._turns.pop(0))
        copied.synchronize()
        lens = torch.tensor(lengths, dtype=torch.int32)
        pages = (lens + self._block_size - 1) // self._block_size
        rows = torch.repeat_interleave(torch.arange(len(lengths)), pages)
        ends = pages.cumsum(0)
        columns = torch.arange(len(rows)) - (ends - pages)[rows]
        at = torch.stack([rows, columns])
        if table.is_cuda:
            at = at.pin_memory().to(table.device, non_blocking=True)
        wrapper.plan(
            _starts(torch.tensor(counts)),
            _starts(pages),
            table[at[0], at[1]],
            lens if self._whole else lens - (pages - 1) * self._block_size,
            **self._question,
        )
        copied.record()
        return wrapper


def _plans(spec: AttentionSpec, facts: DeviceFacts) -> Plans:
    """Return what plans prompts."""
    kind = importlib.import_module(f"{PACKAGE}.prefill").BatchPrefillWithPagedKVCacheWrapper
    dtype = getattr(torch, spec.dtype)
    question = {
        "num_qo_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim_qk": spec.head_dim,
        "page_size": spec.block_size,
        "causal": True,
        "sm_scale": spec.scale,
        # It counts the keys before a query, the specification the query's own too.
        "window_left": -1 if spec.window is None else spec.window - 1,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }
    return Plans(lambda memory: kind(memory, "HND"), question, spec.block_size, facts.device)


def _starts(counts: Tensor) -> Tensor:
    """Return [n + 1] int32 on the host: where each of n parts begins, then the end."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


class Attention(attention.Attention):
    """See `hotshoe.slots.AttentionOp`. Building it compiles and starts the kernels once."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._xqa = importlib.import_module(f"{PACKAGE}.xqa").xqa
        self._page = (spec.num_kv_heads, spec.block_size, spec.head_dim)
        # The kernel divides by the root of head_dim itself.
        self._q_scale = spec.scale * spec.head_dim**0.5
        self._options = {
            "num_kv_heads": spec.num_kv_heads,
            "page_size": spec.block_size,
            "sliding_win_size": spec.window or 0,
            "kv_layout": "HND",
            "sm_count": facts.compute_units,
            "enable_pdl": True,
        }
        piece = self._group * spec.head_dim * 2 + STATS_BYTES
        # Requests are shared among at most as many programs, all together, as there are
        # multiprocessors. The last one leaves its counter at zero.
        scratch = (facts.compute_units, piece)
        counters = torch.zeros(SEMAPHORES, dtype=torch.int32, device=facts.device)
        self._semaphores = counters.view(torch.uint32)
        self._scratch = torch.empty(scratch, dtype=torch.uint8, device=facts.device)
        self._pages_dtype: torch.dtype = getattr(torch, spec.kv_dtype)
        plain = spec.kv_dtype == spec.dtype and not spec.sinks
        self._plans = _plans(spec, facts) if plain else None
        self._run_once(spec, facts)

    def _run_once(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        """Compile and load the kernels, or fail while there is another candidate to take."""
        dtype, device = getattr(torch, spec.dtype), facts.device
        q = torch.zeros((1, spec.num_heads, spec.head_dim), dtype=dtype, device=device)
        pages = torch.zeros((2, 1, *self._page), device=device).to(self._pages_dtype)
        table = torch.zeros((1, 1), dtype=torch.int32, device=device)
        sinks = torch.zeros(spec.num_heads, device=device) if spec.sinks else None
        self.kv_scales = torch.ones(2, device=device)  # until the layer has some
        self._one_query_each(q, pages, table, table[0] + 1, sinks)
        self.kv_scales = None
        if self._plans is not None:
            self._plans([1], [1], table).run(q, (pages[0], pages[1]))

    def prepare(self, shape: StepShape, view: CacheView) -> AttentionMetadata:
        """Plan a step with prompts whose lengths the host knows."""
        plain = self._plans is None
        return whole_step(shape, view) if plain else self._plans.prepare(shape, view, 2)

    def _bind(self, cache: Tensor) -> None:
        super()._bind(cache)
        self._pages = cache.view(self._pages_dtype).view(2, -1, *self._page)

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        decodes = prepared.max_query_len == 1 and q.size(0) == prepared.num_reqs > 0
        if not decodes and not isinstance(prepared, PlannedStep):
            return super().__call__(q, cache, prepared, sinks)
        if cache is not self._cache:
            self._bind(cache)
        if isinstance(prepared, PlannedStep):
            found: Tensor = prepared.wrapper.run(q, (self._pages[0], self._pages[1]))
            return found.flatten(1)
        return self._one_query_each(q, self._pages, prepared.block_table, prepared.seq_lens, sinks)

    def _one_query_each(
        self, q: Tensor, pages: Tensor, table: Tensor, lengths: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Compute one query of each request: q [num_reqs, num_heads, head_dim]."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._xqa(
            q.contiguous()[:, None],
            pages[0],
            pages[1],
            table.contiguous(),
            lengths.view(torch.uint32)[:, None],
            out[:, None],
            self._scratch,
            self._semaphores,
            sinks=None if sinks is None else sinks.view(self._page[0], -1),
            **self._scales(),
            **self._options,
        )
        return out.flatten(1)

    def _scales(self) -> dict[str, float | Tensor]:
        """Return what the kernel scales queries by, and both keys and values by: those of values.

        They are read on the device, where new ones may be loaded.
        """
        if self._spec.kv_scales != "tensor":
            return {"q_scale": self._q_scale}
        assert self.kv_scales is not None, "the layer sets kv_scales before the first call"
        of_keys, of_values = self.kv_scales[:1], self.kv_scales[1:]
        zero = torch.zeros_like(of_keys)
        by = torch.addcdiv(zero, of_keys, of_values, value=self._q_scale)
        return {"q_scale": by, "kv_scale": of_values}
