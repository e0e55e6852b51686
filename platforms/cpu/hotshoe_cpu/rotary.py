"""Candidate `native` of slot `rotary_and_cache`: one C++ pass over the projection's rows."""

from dataclasses import replace

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import RotaryAndCacheSpec, Verdict
from hotshoe_cpu.attention import MAX_HEAD_DIM
from hotshoe_cpu.kv import entry, layout, refusals, stored
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: RotaryAndCacheSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes, types and the cache's layout."""
    return judge(
        facts,
        spec.dtype,
        {
            **refusals(spec),
            f"layout {spec.layout.name} is not written here": replace(spec.layout, gap=0)
            != layout(spec.kv_dtype),
            f"v_head_dim {spec.v_head_dim} differs from head_dim {spec.head_dim}": spec.value_dim
            != spec.head_dim,
            f"head_dim {spec.head_dim} is odd or above {MAX_HEAD_DIM}": bool(
                spec.head_dim % 2 or spec.head_dim > MAX_HEAD_DIM
            ),
            f"block_size {spec.block_size} is odd": bool(spec.block_size % 2),
        },
    )


class RotaryAndCache:
    """See `hotshoe.slots.RotaryAndCacheOp`."""

    kv_scales: Tensor | None = None

    def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
        self._native = kernels(facts)
        self._kernel = entry(self._native, "rotary_and_cache", spec.kv_dtype)
        self._q_shape = (spec.num_heads, spec.head_dim)
        self._sizes = (
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.rotary_dim,
            spec.block_size,
        )
        self._head_stride = spec.block_size * spec.head_dim
        eps = spec.qk_norm_eps
        code = DTYPE_CODES[spec.dtype]
        self._numbers = (eps or 0.0, spec.qk_norm_offset, spec.interleaved, code)
        self._normed = eps is not None
        self._spec = spec
        self._cache: Tensor | None = None

    def _bind(self, cache: Tensor) -> None:
        """Remember a cache's addresses; the first writer also asks for large pages for it."""
        self._native.advise_huge_pages(cache.data_ptr(), 2 * cache.stride(0) * cache.itemsize)
        self._cache = cache
        self._k = cache.data_ptr()
        self._v = self._k + cache.stride(0) * cache.itemsize
        self._block_stride = cache.stride(1)
        self._stored = stored(self._spec, self.kv_scales)

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
        row_stride = qkv.stride(0)
        self._kernel(
            qkv.data_ptr(),
            positions.data_ptr(),
            0 if cos_sin is None else cos_sin.data_ptr(),
            self._k,
            self._v,
            slot_mapping.data_ptr(),
            0 if qk_norm is None else qk_norm[0].data_ptr(),
            0 if qk_norm is None else qk_norm[1].data_ptr(),
            qkv.size(0),
            *self._sizes,
            row_stride,
            self._block_stride,
            self._head_stride,
            *self._numbers,
            *self._stored,
        )
        heads, dim = self._q_shape
        return qkv.as_strided((qkv.size(0), heads, dim), (row_stride, dim, 1))
