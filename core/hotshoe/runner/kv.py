"""KV blocks between a layer's cache and the host, and from one layout, size and type to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from hotshoe.executor.kv import KVBlocks, KVDescriptor, KVLayer
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import PagedKV


def read_blocks(cache: Tensor, block_ids: Sequence[int]) -> Tensor:
    """Copy blocks of one layer's cache to the host: [2, len(block_ids), block_numel]."""
    ids = torch.tensor(block_ids, dtype=torch.int64, device=cache.device)
    return cache.index_select(1, ids).cpu()


def write_blocks(cache: Tensor, block_ids: Sequence[int], content: Tensor) -> None:
    """Fill blocks of one layer's cache with what `read_blocks` returns of an equal one."""
    ids = torch.tensor(block_ids, dtype=torch.int64, device=cache.device)
    cache.index_copy_(1, ids, content.to(cache.device))


def converted(blocks: KVBlocks, layer: int, target: KVDescriptor, wanted: range) -> Tensor:
    """Lay out one layer of blocks as another cache has it.

    Args:
        blocks: Judged by `check_transfer`; they cover the wanted blocks.
        wanted: Which blocks of the sequence, counted in blocks of the target.

    Returns:
        [2, len(wanted), block_numel of the target].
    """
    source, content = blocks.descriptor, cast(Tensor, blocks.layers[layer])
    ours, theirs = source.layers[layer], target.layers[layer]
    if _form(source, ours) == _form(target, theirs):
        return content[:, wanted.start : wanted.stop]
    size = target.block_size
    tokens = range(wanted.start * size, wanted.stop * size)
    first, last = tokens.start // source.block_size, -(-tokens.stop // source.block_size)
    read = PagedKV(
        content, ours.layout, source.block_size, ours.num_kv_heads, ours.head_dim
    ).gather(torch.arange(first, last), (last - first) * source.block_size)
    skipped = tokens.start - first * source.block_size
    k, v = (part[skipped : skipped + len(tokens)] for part in read)
    numel = size * theirs.num_kv_heads * theirs.head_dim
    made = torch.empty((2, len(wanted), numel), dtype=torch_dtype(target.dtype))
    PagedKV(made, theirs.layout, size, theirs.num_kv_heads, theirs.head_dim).write(
        k, v, torch.arange(len(tokens))
    )
    return made


def _form(descriptor: KVDescriptor, layer: KVLayer) -> tuple[object, ...]:
    """Return what makes blocks equal byte for byte. A layout's name says nothing of bytes."""
    layout = layer.layout
    axes = (layout.k_axes, layout.v_axes, layout.pack)
    return (descriptor.dtype, descriptor.block_size, *axes)
