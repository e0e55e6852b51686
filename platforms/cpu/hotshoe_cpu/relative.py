"""Candidate `native` of slot `relative_attention`: the kernel of `attention.py`, over its cache.

The logits of a token for all distances are one product of its states and the profiles. The kernel
adds them to the scores. A prompt goes in slices of tokens, so that they stay few.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, RelativeAttentionSpec, Verdict, slices, whole_step
from hotshoe.slots.reference import accepts
from hotshoe_cpu import attention
from hotshoe_cpu.kv import entry
from hotshoe_cpu.native import kernels

#: Logits of a slice of tokens.
LOGITS_BYTES = 8 << 20


def supports(spec: RelativeAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what no candidate serves."""
    verdict = accepts.supports(spec, facts)
    return attention.supports(spec.attention, facts) if verdict.accepted else verdict


class RelativeAttention:
    """See `hotshoe.slots.RelativeAttentionOp`."""

    prepare = staticmethod(whole_step)
    kv_scales: Tensor | None = None

    def __init__(self, spec: RelativeAttentionSpec, facts: DeviceFacts) -> None:
        self._attend = attention.Attention(spec.attention, facts)
        self.layout = self._attend.layout
        self._kernel = entry(kernels(facts), "relative_attention", spec.attention.kv_dtype)
        self._dim, self._extent = spec.attention.head_dim, spec.extent
        self._stride = spec.attention.num_heads * (spec.extent + 1)
        self._tokens = max(1, LOGITS_BYTES // (4 * self._stride))

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, profiles: Tensor
    ) -> Tensor:
        self._attend.kv_scales = self.kv_scales
        # The kernel reads them backwards; the first is that of all farther tokens.
        table = torch.cat((profiles.new_zeros(len(profiles), 1), profiles.flip(1)), dim=1)
        parts = [
            self._part(q[own], cache, step, table) for own, step in slices(prepared, self._tokens)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, q: Tensor, cache: Tensor, step: AttentionMetadata, table: Tensor) -> Tensor:
        states = q[..., self._dim :].reshape(-1, len(table)).float()
        logits = states @ table
        self._attend.kernel = partial(self._kernel, logits.data_ptr(), self._extent, self._stride)
        return self._attend(q[..., : self._dim].contiguous(), cache, step, None)
