"""Attention within chunks is the usual attention over requests that are chunks."""

import random

import pytest
import torch

from hotshoe.errors import ConfigError
from hotshoe.layers.chunks import check_chunk, chunks_of, prepare_chunks
from hotshoe.slots import CacheView, StepShape, whole_step

SIZE = 4


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def prepared(chunk, counts, lengths, on_host=True):
    """Prepare a step; block b of request r has the number 100 r + b."""
    starts = ints([0, *counts]).cumsum(0, dtype=torch.int32)
    shape = StepShape(len(counts), starts, ints(lengths), max(counts), max(lengths))
    if on_host:
        shape.host_lens = (counts, lengths)
    columns = -(-max(lengths) // SIZE)
    table = torch.arange(columns, dtype=torch.int32) + 100 * torch.arange(len(counts))[:, None]
    slots = torch.arange(sum(counts), dtype=torch.int32)
    return prepare_chunks(chunk, SIZE, whole_step, shape, CacheView(table.to(torch.int32), slots))


def test_a_step_of_random_requests():
    """Each token, in order, has the keys of its chunk up to itself."""
    for _ in range(20):
        chunk = SIZE * random.randint(1, 4)
        lengths = [random.randint(chunk + 1, 50) for _ in range(random.randint(1, 4))]
        counts = [random.randint(1, lengths[0]), *(random.randint(0, n) for n in lengths[1:])]
        made = prepared(chunk, counts, lengths)
        queries = made.query_start_loc.diff().tolist()
        assert made.host_lens == (queries, made.seq_lens.tolist())
        assert made.num_reqs == len(queries) == len(made.block_table)
        assert made.max_query_len >= max(queries) and made.max_seq_len == chunk
        seen = [
            [*made.block_table[i, : -(-end // SIZE)].tolist(), end]
            for i, (count, length) in enumerate(zip(queries, made.seq_lens.tolist(), strict=True))
            for end in range(length - count + 1, length + 1)
        ]
        wanted = []
        for r, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            for position in range(length - count, length):
                begin = position // chunk * chunk
                blocks = range(begin // SIZE, position // SIZE + 1)
                wanted.append([100 * r + b for b in blocks] + [position + 1 - begin])
        assert seen == wanted


def test_a_recorded_step_knows_no_lengths():
    made = prepared(8, [1, 1, 1], [8, 9, 30], on_host=False)
    assert made.seq_lens.tolist() == [8, 1, 6] and made.host_lens is None
    assert made.query_start_loc.tolist() == [0, 1, 2, 3]
    assert made.block_table.tolist() == [[0, 1], [102, 103], [206, 207]]


def test_texts_of_one_chunk_are_left_alone():
    made = prepared(12, [3, 1], [12, 7])
    assert made.num_reqs == 2 and made.seq_lens.tolist() == [12, 7]


def test_chunks_on_the_host():
    assert chunks_of(8, ([17, 1, 0], [20, 8, 9])) == ([5, 8, 4, 1, 0], [8, 8, 4, 8, 1])


def test_chunks_are_whole_blocks():
    check_chunk(48, 16)
    with pytest.raises(ConfigError, match=r"block_size 32 .* 48 tokens.*--block-size 16, or"):
        check_chunk(48, 32)
