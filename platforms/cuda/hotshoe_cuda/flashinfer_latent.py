"""Candidate `flashinfer` of slot `mla_attention`: steps that are not recorded, by FlashInfer.

It is known from its documentation, not from a run: it scores below the Triton kernels, so that it
is taken only when it is asked for (`--kernel mla_attention=flashinfer`). Its wrapper wants a plan
of every step, made on the host in `prepare`, so recorded steps are left to Triton. Triton also
writes the cache, whose rows have the latents that FlashInfer reads before the rotated key.
Source:
`flashinfer.mla.BatchMLAPagedAttentionWrapper` of flashinfer-ai/flashinfer.
"""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    CacheView,
    MlaAttentionSpec,
    StepShape,
    Verdict,
    accept_unless,
)
from hotshoe_cuda.flashinfer import DISTRIBUTION, PACKAGE, RELEASES, TOOLS, PlannedStep, Plans
from hotshoe_triton import latent
from hotshoe_triton.packages import hindrance

#: Below Triton's and FlashMLA's.
SCORE = 30
#: Of its two kernels one is for these, the other for sm_90 alone.
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90")
DTYPES = ("bfloat16", "float16")
#: Latent channels and rotated ones.
SIZES = (512, 64)


def supports(spec: MlaAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what its kernels are built for; the rest as for Triton, whose cache it reads."""
    paged = latent.supports(spec, facts)
    if not paged.accepted:
        return paged
    absent = hindrance(DISTRIBUTION, RELEASES)
    missing = ", ".join(tool for tool in TOOLS if shutil.which(tool) is None)
    sizes = (spec.latent_dim, spec.rope_dim)
    refusals = {
        absent: bool(absent),
        f"FlashInfer has no such kernel for {facts.arch}, but for {', '.join(ARCHS)}": (
            facts.arch not in ARCHS
        ),
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"kv_dtype {spec.kv_dtype}: FlashInfer reads rows of dtype {spec.dtype}": (
            spec.row.quantized or spec.kv_dtype != spec.dtype
        ),
        f"latent_dim and rope_dim are {sizes}, not {SIZES}": sizes != SIZES,
        f"FlashInfer compiles its kernels by {missing}, which is not on the PATH": bool(missing),
    }
    note = "FlashInfer for steps that are not recorded; chosen by name alone"
    return accept_unless(refusals, SCORE, note)


class MlaAttention(latent.MlaAttention):
    """See `hotshoe.slots.MlaAttentionOp`. Building it compiles and starts the kernels once."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        kind = importlib.import_module(f"{PACKAGE}.mla").BatchMLAPagedAttentionWrapper
        dtype = getattr(torch, spec.dtype)
        question = {
            "num_heads": spec.num_heads,
            "head_dim_ckv": spec.latent_dim,
            "head_dim_kpe": spec.rope_dim,
            "page_size": spec.block_size,
            "causal": True,
            "sm_scale": spec.scale,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }
        self._plans = Plans(kind, question, spec.block_size, facts.device, whole=True)
        device = facts.device
        width = spec.nope_dim + spec.rope_dim
        q = torch.zeros((1, spec.num_heads, width), dtype=dtype, device=device)
        wide = torch.zeros((1, spec.num_heads, spec.latent_dim), dtype=dtype, device=device)
        cache = torch.zeros((1, spec.block_size, sum(SIZES)), dtype=dtype, device=device)
        table = torch.zeros((1, 1), dtype=torch.int32, device=device)
        self._run(self._plans([1], [1], table), q, wide, cache)

    def prepare(  # type: ignore[override]
        self, shape: StepShape, view: CacheView
    ) -> AttentionMetadata:
        """Plan a step whose lengths the host knows."""
        return self._plans.prepare(shape, view)

    def _attend(self, q: Tensor, wide: Tensor, cache: Tensor, step: AttentionMetadata) -> Tensor:
        if not isinstance(step, PlannedStep):
            return super()._attend(q, wide, cache, step)
        return self._run(step.wrapper, q, wide, cache)

    def _run(self, wrapper: Any, q: Tensor, wide: Tensor, cache: Tensor) -> Tensor:
        nope, size = self._spec.nope_dim, self._spec.latent_dim
        mixed: Tensor = wrapper.run(wide, q[..., nope:], cache[..., :size], cache[..., size:])
        return mixed
