"""Candidate `flashmla` of slot `mla_attention`: steps that only decode, by DeepSeek's FlashMLA.

It is known from its documentation, not from a run: it scores below the Triton kernels, so that it
is taken only when it is asked for (`--kernel mla_attention=flashmla`). Triton writes the cache,
whose rows are those that FlashMLA reads, and computes prompts. Source: `flash_mla_with_kvcache` of
deepseek-ai/FlashMLA.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
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
    whole_step,
)
from hotshoe_triton import latent
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "flash_mla", ("1.0",)
#: Of its kernels, those for all of a sequence's rows are written for this one alone.
ARCH = "sm_90"
DTYPES = ("bfloat16", "float16")
#: Latent channels, rotated ones and rows of a block.
SIZES = (512, 64, 64)


def supports(spec: MlaAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what its kernel is built for; the rest as for Triton, whose cache it reads."""
    paged = latent.supports(spec, facts)
    if not paged.accepted:
        return paged
    missing = hindrance(DISTRIBUTION, RELEASES)
    sizes = (spec.latent_dim, spec.rope_dim, spec.block_size)
    refusals = {
        missing: bool(missing),
        f"kv_dtype {spec.kv_dtype}: FlashMLA reads 8 bits for chosen rows alone": (
            spec.row.quantized
        ),
        f"FlashMLA has no such kernel for {facts.arch}, but for {ARCH}": facts.arch != ARCH,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"latent_dim, rope_dim and block_size are {sizes}, not {SIZES}": sizes != SIZES,
    }
    note = "FlashMLA for steps that only decode; chosen by name alone while Triton serves too"
    return accept_unless(refusals, SCORE, note)


@dataclass(slots=True)
class ScheduledStep(AttentionMetadata):
    """A step, and where FlashMLA's first call in it leaves how work is shared."""

    schedule: Any = None


class MlaAttention(latent.MlaAttention):
    """See `hotshoe.slots.MlaAttentionOp`."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        library = importlib.import_module("flash_mla")
        self._decode_all, self._schedule = library.flash_mla_with_kvcache, library.get_mla_metadata
        self._schedule()  # older releases want arguments, and fail while there is another candidate
        self._nope, self._latent, self._scale = spec.nope_dim, spec.latent_dim, spec.scale

    def prepare(self, shape: StepShape, view: CacheView) -> ScheduledStep:  # type: ignore[override]
        """Begin a schedule of a step, which its first layer makes on the device."""
        step = whole_step(shape, view)
        values = {field.name: getattr(step, field.name) for field in fields(step)}
        return ScheduledStep(**values, schedule=self._schedule()[0])

    def _attend(self, q: Tensor, wide: Tensor, cache: Tensor, step: AttentionMetadata) -> Tensor:
        if step.max_query_len != 1 or len(q) != step.num_reqs:
            return super()._attend(q, wide, cache, step)
        assert isinstance(step, ScheduledStep)
        queries = torch.cat([wide, q[..., self._nope :]], -1)
        mixed, _ = self._decode_all(
            queries[:, None],
            cache.unsqueeze(2),
            step.block_table,
            step.seq_lens,
            self._latent,
            step.schedule,
            softmax_scale=self._scale,
            causal=True,
        )
        out: Tensor = mixed[:, 0]
        return out
