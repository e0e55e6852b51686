"""Attention within chunks of a text: a query sees the tokens of its own chunk, up to itself.

To a kernel each chunk that a step computes tokens of is a request of its own, whose block table
begins with the chunk. So no kernel knows of chunks. Used by the attention layer, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch

from hotshoe.errors import ConfigError
from hotshoe.layers.cache import Prepare
from hotshoe.slots import CacheView, StepShape

#: Tokens of each request in a step, and its length with them, on the host.
HostLens = tuple[Sequence[int], Sequence[int]]


def check_chunk(chunk: int, block_size: int) -> None:
    """Refuse chunks that end within a block.

    Raises:
        ConfigError: Names block sizes that fit.
    """
    if chunk % block_size:
        raise ConfigError(
            f"block_size {block_size} does not fit the chunks of {chunk} tokens that layers attend "
            f"within; use --block-size {gcd(chunk, block_size)}, or another that divides them"
        )


def prepare_chunks(
    chunk: int, block_size: int, prepare: Prepare, shape: StepShape, view: CacheView
) -> Any:
    """Have a step prepared as one over chunks; as `AttentionOp.prepare`.

    Args:
        chunk: Tokens of a chunk; whole blocks.
        prepare: The operation's.
    """
    if shape.max_seq_len <= chunk:
        return prepare(shape, view)
    ends = shape.seq_lens
    starts = ends - shape.query_start_loc.diff()
    first = starts // chunk
    counts = (ends - 1) // chunk - first + 1
    host = None if shape.host_lens is None else chunks_of(chunk, shape.host_lens)
    if host is None:
        assert shape.max_query_len == 1, "a recorded step computes one token of each request"
    total = shape.num_reqs if host is None else len(host[0])
    places = torch.arange(total, dtype=torch.int32, device=ends.device)
    if total == shape.num_reqs and shape.max_query_len == 1:
        request = places.long()  # a shape that follows from numbers is no part of a recording
    else:
        request = torch.repeat_interleave(counts, output_size=total)
    before = (counts.cumsum(0) - counts)[request]
    begin = (first[request] + places - before) * chunk
    lengths = (ends[request] - begin).clamp(max=chunk)
    queries = lengths - (starts[request] - begin).clamp(min=0)
    columns = torch.arange(chunk // block_size, device=ends.device)
    columns = (begin // block_size)[:, None] + columns
    own = view.block_table[request[:, None], columns.clamp(max=view.block_table.size(1) - 1)]
    inner = StepShape(
        total,
        torch.nn.functional.pad(queries.cumsum(0), (1, 0)).to(torch.int32),
        lengths.to(torch.int32),
        min(shape.max_query_len, chunk),
        chunk,
        host,
    )
    return prepare(inner, CacheView(own, view.slot_mapping))


def chunks_of(chunk: int, lens: HostLens) -> tuple[list[int], list[int]]:
    """Return the step's tokens of each chunk that has any, and its length with them."""
    queries, lengths = [], []
    for count, end in zip(*lens, strict=True):
        for begin in range((end - count) // chunk * chunk, end, chunk):
            lengths.append(min(end - begin, chunk))
            queries.append(lengths[-1] - max(end - count - begin, 0))
    return queries, lengths
