"""Candidate `native` of slot `tree_attention`: the kernel of `attention.py`, over its cache."""

from functools import partial

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    TreeAttentionSpec,
    TreeNodes,
    Verdict,
    refuse,
    tree_refusal,
)
from hotshoe_cpu import attention
from hotshoe_cpu.kv import entry
from hotshoe_cpu.native import kernels


def supports(spec: TreeAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what trees lack."""
    verdict = attention.supports(spec.attention, facts)
    if not verdict.accepted:
        return verdict
    reason = tree_refusal(spec, attention.declared_layout(spec.attention, facts))
    return refuse(reason) if reason else verdict


class TreeAttention:
    """See `hotshoe.slots.TreeAttentionOp`."""

    def __init__(self, spec: TreeAttentionSpec, facts: DeviceFacts) -> None:
        self._attend = attention.Attention(spec.attention, facts)
        self._kernel = entry(kernels(facts), "tree_attention", spec.attention.kv_dtype)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        nodes: TreeNodes,
        sinks: Tensor | None,
    ) -> Tensor:
        addresses = nodes.counts.data_ptr(), nodes.ancestors.data_ptr()
        self._attend.kernel = partial(self._kernel, *addresses)
        return self._attend(q, cache, prepared, sinks)
