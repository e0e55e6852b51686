"""Reference of slot `packed_attention`: one request at a time, float32 inside."""

from itertools import pairwise

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.packed import PackedAttentionSpec
from hotshoe.slots.reference.rotary import rotate
from hotshoe.slots.step import StepShape


class PackedAttention:
    """See `hotshoe.slots.PackedAttentionOp`."""

    def __init__(self, spec: PackedAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def prepare(self, shape: StepShape) -> list[int]:
        """Return where requests begin, then the end of the last."""
        found: list[int] = shape.query_start_loc.tolist()
        return found

    def __call__(
        self, qkv: Tensor, positions: Tensor, cos_sin: Tensor | None, prepared: list[int]
    ) -> Tensor:
        spec = self._spec
        heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        q, k, v = torch.split(qkv.view(len(qkv), -1, spec.head_dim), heads, dim=1)
        if cos_sin is not None:
            table = cos_sin[positions.long()]
            q, k = rotate(q, table, False), rotate(k, table, False)
        out = torch.empty_like(q)
        for begin, end in pairwise(prepared):
            own = slice(begin, end)
            out[own] = attend(spec, q[own], k[own], v[own])
        return out.flatten(1)


def attend(spec: PackedAttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend within one request, in the wider of float32 and the given type.

    Args:
        q: [length, num_heads, head_dim], rotated.
        k, v: [length, num_kv_heads, head_dim].

    Returns:
        [length, num_heads, head_dim] in q's dtype.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    group, length = spec.num_heads // spec.num_kv_heads, len(q)
    keys = k.to(wide).repeat_interleave(group, dim=1)
    values = v.to(wide).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), keys) * spec.scale
    if spec.window is not None:
        at = torch.arange(length, device=q.device)
        scores = scores.masked_fill((at[:, None] - at).abs() > spec.window, float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), values).to(q.dtype)
