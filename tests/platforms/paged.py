"""Steps over a paged cache, and what the reference makes of them.

What no request owns is NaN, and block tables name blocks that do not exist behind a request's end.
"""

import torch
from torch import Tensor

from hotshoe.slots import AttentionMetadata, AttentionSpec, KVLayout
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import PagedKV

Requests = list[tuple[int, int]]


def step(
    spec: AttentionSpec, requests: Requests, layout: KVLayout, hosted: bool = True
) -> tuple[Tensor, Tensor, AttentionMetadata, Tensor]:
    """Return (q, cache, metadata, expected) of a step over (tokens of the step, in all)."""
    counts, lengths = ([r[i] for r in requests] for i in (0, 1))
    blocks = [-(-length // spec.block_size) for length in lengths]
    order = torch.randperm(sum(blocks) + 3).int()
    table = torch.full((len(requests), max(blocks) + 2), 2**31 - 1, dtype=torch.int32)
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    dtype = getattr(torch, spec.dtype)
    cache = torch.full((2, sum(blocks) + 3, numel), float("nan"), dtype=dtype)
    paged = PagedKV(cache, layout, spec.block_size, spec.num_kv_heads, spec.head_dim)
    q = torch.randn(sum(counts), spec.num_heads + 2, spec.head_dim).to(dtype)[:, : spec.num_heads]
    expected, at, taken = [], 0, 0
    for row, (count, length) in enumerate(requests):
        own = order[taken : taken + blocks[row]]
        taken += blocks[row]
        table[row, : len(own)] = own
        k, v = (torch.randn(length, spec.num_kv_heads, spec.head_dim).to(dtype) for _ in "kv")
        positions = torch.arange(length)
        slots = own[positions // spec.block_size] * spec.block_size + positions % spec.block_size
        paged.write(k, v, slots)
        expected.append(attend(spec, q[at : at + count].float(), k, v, None))
        at += count
    metadata = AttentionMetadata(
        len(requests),
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32),
        table,
        torch.zeros(sum(counts), dtype=torch.int32),
        max(counts),
        max(lengths),
        (counts, lengths) if hosted else None,
    )
    return q, cache, metadata, torch.cat(expected).flatten(1)
