"""What an attention layer keeps of past tokens, and who prepares a step over it.

Asked when a layer is built; no step runs through here.
"""

from __future__ import annotations

import math
from functools import partial

from hotshoe.layers.cache import Prepare
from hotshoe.layers.chunks import check_chunk, prepare_chunks
from hotshoe.slots import AttentionSpec, KVLayout
from hotshoe.types.cache import CachePart, CacheSpec


def attention_cache(
    spec: AttentionSpec, layout: KVLayout, max_model_len: int, chunk: int | None
) -> CacheSpec:
    """Say what is kept; a window or chunk that holds the longest sequence drops nothing.

    Args:
        layout: Of the operation that reads it.
        chunk: See `Attention`.
    """
    room = layout.value_room(spec.head_dim, spec.v_head_dim)
    k, v = (
        layout.block_shape(axes, spec.block_size, spec.num_kv_heads, dim)
        for axes, dim in ((layout.k_axes, spec.head_dim), (layout.v_axes, room))
    )
    behind = layout.gap + math.prod(k) - math.prod(v)  # blocks of both are equally far apart
    parts: tuple[CachePart, ...] = (
        CachePart("k", layout.k_axes, k, spec.kv_dtype, layout.gap),
        CachePart("v", layout.v_axes, v, spec.kv_dtype, behind),
    )
    if spec.kv_scales == "token":
        shape = (spec.num_kv_heads, spec.block_size)
        parts += tuple(CachePart(f"{name}_scale", "ht", shape, "float32") for name in "kv")
    if chunk is not None and chunk < max_model_len:
        return CacheSpec("window", spec.block_size, parts, chunk, chunked=True)
    if spec.window is None or spec.window >= max_model_len:
        return CacheSpec("full", spec.block_size, parts)
    return CacheSpec("window", spec.block_size, parts, spec.window)


def prepare_of(kept: CacheSpec, prepare: Prepare) -> Prepare:
    """Return what prepares a step for a layer, given its operation's own way.

    Raises:
        ConfigError: Chunks are no whole blocks.
    """
    if not kept.chunked or kept.window is None:
        return prepare
    check_chunk(kept.window, kept.block_tokens)
    return partial(prepare_chunks, kept.window, kept.block_tokens, prepare)
