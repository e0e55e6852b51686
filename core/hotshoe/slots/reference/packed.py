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

    def prepare(
        self, shape: StepShape, num_keys: Tensor | None = None
    ) -> list[tuple[int, int, int]]:
        """Return where each request begins, where its keys end, and where it ends."""
        starts: list[int] = shape.query_start_loc.tolist()
        keys = [None] * shape.num_reqs if num_keys is None else num_keys.tolist()
        return [
            (begin, end if count is None else begin + count, end)
            for (begin, end), count in zip(pairwise(starts), keys, strict=True)
        ]

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        prepared: list[tuple[int, int, int]],
        bias: Tensor | None = None,
    ) -> Tensor:
        spec = self._spec
        heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        q, k, v = torch.split(qkv.view(len(qkv), -1, spec.head_dim), heads, dim=1)
        if cos_sin is not None:
            table = cos_sin[positions.long()]
            q, k = rotate(q, table, False), rotate(k, table, False)
        out = torch.empty_like(q)
        for begin, seen, end in prepared:
            own, keys = slice(begin, end), slice(begin, seen)
            out[own] = attend(spec, q[own], k[keys], v[keys], bias)
        return out.flatten(1)


def attend(
    spec: PackedAttentionSpec, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Attend within one request, in the wider of float32 and the given type.

    Args:
        q: [length, num_heads, head_dim], rotated.
        k, v: [num_keys, num_kv_heads, head_dim], of the first tokens.
        bias: [num_heads, 2 * spec.bias_span + 1], by distance.

    Returns:
        [length, num_heads, head_dim] in q's dtype.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    group = spec.num_heads // spec.num_kv_heads
    keys = k.to(wide).repeat_interleave(group, dim=1)
    values = v.to(wide).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), keys) * spec.scale
    at = torch.arange(len(q), device=q.device)
    distances = at[: len(k)] - at[:, None]
    if spec.bias_span is not None:
        assert bias is not None, "specifications with a span have a bias"
        span = spec.bias_span
        scores = scores + bias.to(wide)[:, distances.clamp(-span, span) + span]
    if spec.window is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        seen = distances.abs() <= spec.window
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        weights = weights.masked_fill(~seen.any(1, keepdim=True), 0.0)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
