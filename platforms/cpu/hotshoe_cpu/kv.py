"""Types of the KV cache that the native kernels read and write, and how blocks of them lie.

Numbers of 8 bits lie as those of 16 do. Called by `attention.py` and `rotary.py`.
"""

from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from hotshoe.slots import AttentionSpec, KVLayout, RotaryAndCacheSpec

#: Codes of 8-bit types at the kernels' boundary.
NARROW_CODES = {"int8": 3, "float8_e4m3fn": 4, "float8_e5m2": 5}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2} | dict.fromkeys(NARROW_CODES, 1)


def layout(kv_dtype: str, gap: int = 0) -> KVLayout:
    """Return the layout for a cache type: pairs of elements of 16 bits, or 8, stay together."""
    if kv_dtype == "float32":
        return KVLayout("cpu-float", "hdt", "htd", gap=gap)
    return KVLayout("cpu-pairs", "hDtd", "hTdt", pack=2, gap=gap)


def refusals(spec: AttentionSpec | RotaryAndCacheSpec) -> dict[str, bool]:
    """Return reasons to refuse a cache's type, each with whether it holds."""
    kind = spec.kv_dtype
    return {
        f"kv_dtype {kind} differs from dtype {spec.dtype}": kind != spec.dtype
        and kind not in NARROW_CODES,
        f"kv_dtype {kind} needs kv_scales": kind == "int8" and spec.kv_scales == "none",
    }


def entry(kernels: ModuleType, name: str, kv_dtype: str) -> Callable[..., None]:
    """Return a kernel for a type of the cache."""
    found: Callable[..., None] = getattr(kernels, name + "_8bit" * (kv_dtype in NARROW_CODES))
    return found


def stored(
    spec: AttentionSpec | RotaryAndCacheSpec, kv_scales: Tensor | None
) -> tuple[int, int, bool] | tuple[()]:
    """Return what a kernel takes besides for a cache of 8 bits: the type, the layer's scales,
    whether tokens have their own."""
    if spec.kv_dtype not in NARROW_CODES:
        return ()
    given = 0
    if spec.kv_scales == "tensor":
        assert kv_scales is not None, "the layer sets kv_scales before the first call"
        given = kv_scales.data_ptr()
    return NARROW_CODES[spec.kv_dtype], given, spec.kv_scales == "token"
