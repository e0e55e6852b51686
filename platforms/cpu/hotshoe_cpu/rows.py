"""Rows of a cache that has one for each token, as the native kernels are told of them.

Called by `latent.py`, `sparse.py` and `compressed.py`.
"""

from __future__ import annotations

from torch import Tensor

from hotshoe.slots import (
    BlockIndexerSpec,
    CompressedAttentionSpec,
    CompressSpec,
    IndexerSpec,
    MlaAttentionSpec,
)
from hotshoe_cpu.kv import NARROW_CODES
from hotshoe_cpu.native import DTYPE_CODES

CODES = DTYPE_CODES | NARROW_CODES

#: What has a cache of rows.
Spec = MlaAttentionSpec | IndexerSpec | BlockIndexerSpec | CompressSpec | CompressedAttentionSpec


def refusals(spec: Spec) -> dict[str, bool]:
    """Return reasons to refuse a cache's rows, each with whether it holds."""
    kind, refusal = spec.kv_dtype, spec.row.refusal
    return {
        f"kv_dtype {kind} is not one of {', '.join(CODES)}": kind not in CODES,
        f"it {refusal}": bool(refusal),
    }


def strides(cache: Tensor) -> tuple[int, int]:
    """Return the bytes from one block to the next, and from one row to the next."""
    return cache.stride(0) * cache.itemsize, cache.stride(1) * cache.itemsize
