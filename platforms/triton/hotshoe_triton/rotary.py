"""Candidate of slot `rotary_and_cache`: one launch over tokens and groups of heads."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import RotaryAndCacheSpec, Verdict
from hotshoe_triton import kv
from hotshoe_triton.attention import LAYOUT
from hotshoe_triton.device import chaining, judge, next_power_of_2

#: Elements that a program takes: enough for wide loads, few enough for many programs per token.
ELEMENTS = 1024
MAX_HEAD_DIM = 512


def supports(spec: RotaryAndCacheSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes, types and the cache's layout."""
    return judge(
        facts,
        spec.dtype,
        {
            **kv.refusals(spec, facts),
            f"layout {spec.layout.name} is not written here": spec.layout != LAYOUT,
            f"head_dim {spec.head_dim} is above {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
            f"rotary_dim {spec.rotary_dim} is odd or above head_dim": bool(
                spec.rotary_dim % 2 or spec.rotary_dim > spec.head_dim
            ),
        },
    )


class RotaryAndCache:
    """See `hotshoe.slots.RotaryAndCacheOp`."""

    kv_scales: Tensor | None = None

    def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.rotary import rotary_and_cache

        self._kernel, self._spec = rotary_and_cache, spec
        self._q_shape = (spec.num_heads, spec.head_dim)
        heads = spec.num_heads + 2 * spec.num_kv_heads
        dim = next_power_of_2(spec.head_dim)
        block_h = max(1, min(ELEMENTS // dim, next_power_of_2(heads)))
        self._groups = -(-heads // block_h)
        self._normed = spec.qk_norm_eps is not None
        self._constants = {
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "HEAD_DIM": spec.head_dim,
            "ROTARY_DIM": spec.rotary_dim,
            "INTERLEAVED": spec.interleaved,
            "NORM": self._normed,
            "EPS": spec.qk_norm_eps or 0.0,
            "OFFSET": spec.qk_norm_offset,
            "BLOCK_SIZE": spec.block_size,
            "BLOCK_H": block_h,
            "BLOCK_P": next_power_of_2(max(spec.rotary_dim // 2, 1)),
            "BLOCK_C": next_power_of_2(max(spec.head_dim - spec.rotary_dim, 1)),
            "LIMIT": kv.LIMITS.get(spec.kv_dtype, 0.0),
            "num_warps": 2,
        }
        self._constants |= kv.constants(spec) | chaining(facts)
        self._cache: Tensor | None = None

    def _bind(self, cache: Tensor) -> None:
        self._cache = cache
        self._planes = kv.planes(cache, self._spec, self.kv_scales)

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        slot_mapping: Tensor,
        qk_norm: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        if cache is not self._cache:
            self._bind(cache)
        assert (qk_norm is not None) == self._normed
        tokens, stride = qkv.size(0), qkv.stride(0)
        weights = (qkv, qkv) if qk_norm is None else qk_norm
        if tokens:
            self._kernel[(tokens, self._groups)](
                qkv,
                positions,
                positions if cos_sin is None else cos_sin,
                *self._planes.tensors,
                slot_mapping,
                *weights,
                stride,
                self._planes.stride,
                **self._constants,
            )
        heads, dim = self._q_shape
        return qkv.as_strided((tokens, heads, dim), (stride, dim, 1))
