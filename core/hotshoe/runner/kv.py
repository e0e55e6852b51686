"""KV blocks between a layer's cache and the host, and from one layout, size and type to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from hotshoe.executor.kv import KVBlocks, first_kept, heads_of
from hotshoe.layers.cache import stored_as
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import PagedKV, parts_of
from hotshoe.types.cache import CacheSpec


def read_blocks(cache: Tensor, block_ids: Sequence[int]) -> Tensor:
    """Copy blocks of one layer's cache to the host: [2, len(block_ids), block_numel]."""
    ids = torch.tensor(block_ids, dtype=torch.int64, device=cache.device)
    return cache.index_select(1, ids).cpu()


def write_blocks(cache: Tensor, block_ids: Sequence[int], content: Tensor) -> None:
    """Fill blocks of one layer's cache with what `read_blocks` returns of an equal one."""
    ids = torch.tensor(block_ids, dtype=torch.int64, device=cache.device)
    cache.index_copy_(1, ids, content.to(cache.device))


def converted(blocks: KVBlocks, layer: int, target: CacheSpec, wanted: range) -> Tensor:
    """Lay out one layer of blocks as another cache has it.

    Args:
        blocks: Judged by `check_transfer`; they cover the wanted blocks.
        target: That layer's cache.
        wanted: Which blocks of the sequence, counted in blocks of the target.

    Returns:
        [2, len(wanted), block_numel of the target].
    """
    source, content = blocks.descriptor.layers[layer], cast(Tensor, blocks.layers[layer])
    skipped = first_kept(source, len(blocks.token_ids))
    if _form(source) == _form(target):
        return content[:, wanted.start - skipped : wanted.stop - skipped]
    size = target.block_tokens
    tokens = range(wanted.start * size, wanted.stop * size)
    first, last = tokens.start // source.block_tokens, -(-tokens.stop // source.block_tokens)
    ahead = tokens.start - first * source.block_tokens
    numel, dtype = stored_as(target)
    made = torch.empty((2, len(wanted), numel), dtype=dtype)
    for read, write in zip(_paged(content, source), _paged(made, target), strict=True):
        both = read.gather(
            torch.arange(first - skipped, last - skipped), (last - first) * source.block_tokens
        )
        k, v = (part[ahead : ahead + len(tokens)] for part in both)
        write.write(k, v, torch.arange(len(tokens)))
    return made


def _paged(cache: Tensor, spec: CacheSpec) -> list[PagedKV]:
    """View a layer's elements and, where there are any, their scales."""
    heads, dtype = heads_of(spec), torch_dtype(spec.parts[0].dtype)
    sizes = (spec.block_tokens, heads.num_kv_heads, heads.head_dim)
    return parts_of(cache, dtype, heads.layout, sizes, len(spec.parts) > 2)


def _form(spec: CacheSpec) -> tuple[object, ...]:
    """Return what makes blocks equal byte for byte; gaps do not travel."""
    return (spec.block_tokens, *((part.axes, part.shape, part.dtype) for part in spec.parts))
