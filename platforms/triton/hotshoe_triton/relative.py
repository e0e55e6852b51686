"""Candidate of slot `relative_attention`, over the cache of `attention.py`.

The logits of a token for all distances are one product of its states and the profiles. The kernel
adds them to the scores. A prompt goes in slices of tokens, so that they stay few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, RelativeAttentionSpec, Verdict, slices, whole_step
from hotshoe.slots.reference import accepts
from hotshoe_triton import attention
from hotshoe_triton.attention import LAYOUT, MIN_ROWS, Tiling
from hotshoe_triton.device import next_power_of_2
from hotshoe_triton.tree_attention import SharedTiles, tiling_of

#: Logits of a slice of tokens.
LOGITS_BYTES = 256 << 20


def supports(spec: RelativeAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what no candidate serves."""
    verdict = accepts.supports(spec, facts)
    return attention.supports(spec.attention, facts) if verdict.accepted else verdict


class RelativeAttention(SharedTiles):
    """See `hotshoe.slots.RelativeAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
    """

    layout = LAYOUT
    kv_scales: Tensor | None = None
    prepare = staticmethod(whole_step)

    def __init__(
        self, spec: RelativeAttentionSpec, facts: DeviceFacts, tiling: Tiling | None = None
    ) -> None:
        from hotshoe_triton.kernels.relative import relative_attention

        own = spec.attention
        constants = {
            "HEAD_STRIDE": own.head_dim + spec.states,
            "WINDOW": own.window or 0,
            "EXTENT": spec.extent,
        }
        chosen = tiling or tiling_of(own, facts)
        super().__init__(relative_attention, own, facts, chosen, constants)
        self._tokens = max(1, LOGITS_BYTES // (4 * own.num_heads * spec.extent))
        # Single queries have tiles of as few rows as a product has.
        self._rows = max(MIN_ROWS, next_power_of_2(self._group))

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, profiles: Tensor
    ) -> Tensor:
        spec = self._spec
        out = torch.empty((len(q), spec.num_heads * spec.head_dim), dtype=q.dtype, device=q.device)
        if not prepared.num_reqs:
            return out
        self._bind(cache, self.kv_scales)
        few = {"BLOCK_M": self._rows} if prepared.max_query_len == 1 else {}
        for own, step in slices(prepared, self._tokens):
            logits = q[own, :, spec.head_dim :].float() @ profiles
            self._run(out[own], q[own], step, [logits], **few)
        return out
