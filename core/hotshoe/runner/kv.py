"""Blocks between a layer's cache and the host, and from one layout, size and type to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.executor.kv import KVBlocks, KVDescriptor, first_kept, heads_of, numbers_of
from hotshoe.layers.cache import CacheLayer, stored_as
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import LIMITS, PagedKV, QuantizedKV, parts_of
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.types.cache import CacheSpec
from hotshoe.types.rows import ROW_KINDS, row_form


def cache_parts(layer: CacheLayer) -> list[Tensor]:
    """View each tensor of a layer's cache as [num_blocks, block_numel]."""
    cache = layer.cache
    rows = layer.cache_spec.kind in ROW_KINDS or len(layer.cache_spec.parts) == 1
    parts = (cache,) if rows and isinstance(cache, Tensor) else cache
    return [part.view(len(part), -1) for part in parts]


def read_blocks(parts: Sequence[Tensor], block_ids: Sequence[int]) -> list[Tensor]:
    """Copy blocks of one layer's cache to the host: of each part [len(block_ids), block_numel]."""
    ids = torch.tensor(block_ids, dtype=torch.int64)
    return [part.index_select(0, ids.to(part.device)).cpu() for part in parts]


def write_blocks(
    parts: Sequence[Tensor], block_ids: Sequence[int], content: Sequence[Tensor]
) -> None:
    """Fill blocks of one layer's cache with what `read_blocks` returns of an equal one."""
    ids = torch.tensor(block_ids, dtype=torch.int64)
    for part, fresh in zip(parts, content, strict=True):
        part.index_copy_(0, ids.to(part.device), fresh.to(part.device))


def copy_blocks(
    caches: Iterable[tuple[int, Sequence[Tensor]]],
    copies: Mapping[int, tuple[Sequence[int], Sequence[int]]],
) -> None:
    """Copy blocks within caches, given with the numbers of their groups; see `StatesWorker`."""
    for group, parts in caches:
        if group in copies:
            sources, targets = (torch.tensor(ids, dtype=torch.int64) for ids in copies[group])
            for part in parts:
                fresh = part.index_select(0, sources.to(part.device))
                part.index_copy_(0, targets.to(part.device), fresh)


def converted(blocks: KVBlocks, layer: int, own: KVDescriptor, wanted: range) -> list[Tensor]:
    """Lay out one layer of blocks as another cache has it.

    Args:
        blocks: `check_transfer` has let them pass; they cover the wanted blocks.
        own: The other cache.
        wanted: Which blocks of the sequence, counted in blocks of the target.

    Returns:
        As in `KVBlocks.layers`, laid out as the target's.
    """
    source, content = blocks.descriptor.layers[layer], blocks.layers[layer]
    target, skipped = own.layers[layer], first_kept(source, len(blocks.token_ids))
    alike = numbers_of(blocks.descriptor, layer) == numbers_of(own, layer)
    if alike and _form(source) == _form(target):
        return [part[wanted.start - skipped : wanted.stop - skipped] for part in content]
    if source.kind not in ("full", "window"):
        return _rows(source, content, target, wanted, skipped)
    size = target.block_tokens
    tokens = range(wanted.start * size, wanted.stop * size)
    first, last = tokens.start // source.block_tokens, -(-tokens.stop // source.block_tokens)
    ahead = tokens.start - first * source.block_tokens
    numel, dtype = stored_as(target)
    made = torch.empty((2, len(wanted), numel), dtype=dtype)
    views = _paged if alike else _values
    caches = (torch.stack(list(content)), blocks.descriptor), (made, own)
    for read, write in zip(*(views(cache, form, layer) for cache, form in caches), strict=True):
        both = read.gather(
            torch.arange(first - skipped, last - skipped), (last - first) * source.block_tokens
        )
        k, v = (part[ahead : ahead + len(tokens)] for part in both)
        write.write(k, v, torch.arange(len(tokens)))
    return list(made)


def _rows(
    source: CacheSpec, content: Sequence[Tensor], target: CacheSpec, wanted: range, skipped: int
) -> list[Tensor]:
    """Lay out latents, a row for each token, or states, a row for each block; see `converted`."""
    rows = (1, 1) if source.kind == "state" else (source.block_tokens, target.block_tokens)
    first, last = (block * rows[1] - skipped * rows[0] for block in (wanted.start, wanted.stop))
    own = [part.reshape(len(part) * rows[0], -1)[first:last] for part in content]
    if source.kind in ROW_KINDS:
        theirs, ours = row_form(source), row_form(target)
        fresh = own[0] if theirs == ours else packed(ours, unpacked(theirs, own[0]))
        return [fresh.reshape(len(wanted), -1)]
    return [
        part.reshape(len(wanted), -1).to(torch_dtype(form.dtype))
        for part, form in zip(own, target.parts, strict=True)
    ]


def _paged(cache: Tensor, form: KVDescriptor, layer: int) -> list[PagedKV]:
    """View a layer's elements and, where there are any, their scales."""
    spec = form.layers[layer]
    heads, dtype = heads_of(spec), torch_dtype(spec.parts[0].dtype)
    sizes = (spec.block_tokens, heads.num_kv_heads, heads.head_dim)
    narrow = None if heads.v_head_dim == heads.head_dim else heads.v_head_dim
    return parts_of(cache, dtype, heads.layout, sizes, len(spec.parts) > 2, narrow)


def _values(cache: Tensor, form: KVDescriptor, layer: int) -> Sequence[PagedKV | QuantizedKV]:
    """View a layer's keys and values as attention reads them."""
    spec, given = form.layers[layer], form.scales.get(layer)
    dtype, heads = spec.parts[0].dtype, heads_of(spec)
    if dtype not in LIMITS:
        return _paged(cache, form, layer)
    scales = "token" if len(spec.parts) > 2 else "none" if given is None else "tensor"
    sizes = (spec.block_tokens, heads.num_kv_heads, heads.head_dim)
    two = None if given is None else torch.tensor(given)
    return [QuantizedKV(cache, dtype, heads.layout, sizes, scales, two)]


def _form(spec: CacheSpec) -> tuple[object, ...]:
    """Return what makes blocks equal byte for byte; gaps do not travel."""
    return (spec.block_tokens, *((part.axes, part.shape, part.dtype) for part in spec.parts))
