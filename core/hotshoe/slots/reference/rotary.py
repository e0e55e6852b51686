"""Reference of slot `rotary_and_cache`: q/k norm, rotation, and the cache write, float32 inside."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.reference.norm import rms_norm
from hotshoe.slots.specs import RotaryAndCacheSpec


class RotaryAndCache:
    """See `hotshoe.slots.RotaryAndCacheOp`."""

    kv_scales: Tensor | None = None

    def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        slot_mapping: Tensor,
        qk_norm: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        spec = self._spec
        heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        dims = [spec.head_dim, spec.head_dim, spec.value_dim]
        sizes = [n * dim for n, dim in zip(heads, dims, strict=True)]
        parts = torch.split(qkv, sizes, dim=1)
        q, k, v = (x.view(len(x), -1, dim) for x, dim in zip(parts, dims, strict=True))
        if qk_norm is not None:
            assert spec.qk_norm_eps is not None
            q = rms_norm(q, qk_norm[0], spec.qk_norm_eps, spec.qk_norm_offset)
            k = rms_norm(k, qk_norm[1], spec.qk_norm_eps, spec.qk_norm_offset)
        if cos_sin is not None:
            table = cos_sin[positions.long()]
            q = rotate(q, table, spec.interleaved)
            k = rotate(k, table, spec.interleaved)
        kv_of(cache, spec, spec.layout, self.kv_scales).write(k, v, slot_mapping)
        return q


def rotate(x: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """Rotate the leading channels of every head.

    Source: Su et al. 2021, arXiv:2104.09864.

    Args:
        x: [num_tokens, heads, head_dim].
        table: [num_tokens, rotary_dim] float32, cosines then sines.
        interleaved: Pairs are neighbors rather than halves.
    """
    rotary_dim = table.shape[-1]
    cos, sin = table.unsqueeze(1).chunk(2, dim=-1)
    part, rest = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = part.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
