"""The attention reference against attention written out in float64, query by query."""

import random

import pytest
import torch

from hotshoe.slots import Alibi, AttentionMetadata, AttentionSpec
from hotshoe.slots.reference.attention import Attention
from hotshoe.slots.reference.kv import PagedKV, kv_of

OPTIONS = [
    {},
    {"num_kv_heads": 1},
    {"num_kv_heads": 6},
    {"window": 1},
    {"window": 5},
    {"window": 1000},
    {"softcap": 2.5},
    {"sinks": True},
    {"num_kv_heads": 2, "window": 7, "softcap": 4.0, "sinks": True},
    {"alibi": Alibi(6)},
    {"alibi": Alibi(12, 6, 4.0, 0.5), "softcap": 4.0, "window": 9},
]


def oracle(spec, q, k, v, position, sinks):
    """Attend with one query [heads, dim] at a position, over k and v [tokens, kv_heads, dim]."""
    rows = []
    for head in range(spec.num_heads):
        kv_head = head * spec.num_kv_heads // spec.num_heads
        first = 0 if spec.window is None else max(0, position - spec.window + 1)
        keys, values = k[first : position + 1, kv_head], v[first : position + 1, kv_head]
        scores = keys.double() @ q[head].double() * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if spec.alibi is not None:
            away = position - torch.arange(first, position + 1)
            scores -= spec.alibi.slopes(spec.num_heads)[head] * away
        weights = scores.exp()
        total = weights.sum() + (sinks[head].double().exp() if sinks is not None else 0.0)
        rows.append((weights / total) @ values.double())
    return torch.stack(rows)


def make_step(spec, queries, lengths):
    """Lay random sequences out in shuffled blocks of a poisoned cache."""
    num_blocks = 2 * sum(-(-n // spec.block_size) for n in lengths)
    free = random.sample(range(num_blocks), num_blocks)
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    cache = torch.full((2, num_blocks, numel), float("nan"))
    paged = PagedKV(cache, Attention.layout, spec.block_size, spec.num_kv_heads, spec.head_dim)
    width = max(-(-n // spec.block_size) for n in lengths)
    table = torch.full((len(lengths), width + 2), -1, dtype=torch.int32)
    sequences = []
    for row, length in enumerate(lengths):
        count = -(-length // spec.block_size)
        blocks = [free.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(blocks)
        k, v = torch.randn(2, length, spec.num_kv_heads, spec.head_dim)
        slots = [
            blocks[i // spec.block_size] * spec.block_size + i % spec.block_size
            for i in range(length)
        ]
        paged.write(k, v, torch.tensor(slots))
        sequences.append((k, v))
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    metadata = AttentionMetadata(
        num_reqs=len(lengths),
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table[:, :width],
        slot_mapping=torch.empty(0, dtype=torch.int32),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
    )
    return cache, metadata, sequences


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_against_float64(options):
    values = {"num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "block_size": 4, **options}
    spec = AttentionSpec(**values, dtype="float32", kv_dtype="float32", scale=0.37)
    queries = [1, 5, 13, 1, 7]
    lengths = [1, 5, 21, 18, 8]
    cache, metadata, sequences = make_step(spec, queries, lengths)
    q = torch.randn(sum(queries), spec.num_heads, spec.head_dim)
    sinks = torch.randn(spec.num_heads) if spec.sinks else None
    strided = torch.cat((q, q.new_full((len(q), 2, spec.head_dim), float("nan"))), 1)[:, :-2]
    out = Attention(spec, None)(strided, cache, metadata, sinks)
    assert out.shape == (len(q), spec.num_heads * spec.head_dim) and out.is_contiguous()
    for row, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        k, v = sequences[row]
        begin = int(metadata.query_start_loc[row])
        for i in range(count):
            expected = oracle(spec, q[begin + i], k, v, length - count + i, sinks)
            got = out[begin + i].view(spec.num_heads, spec.head_dim).double()
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_result_has_the_models_type():
    spec = AttentionSpec(2, 1, 8, "bfloat16", "float32", 4, 1.0)
    cache, metadata, _ = make_step(spec, [3], [6])
    q = torch.randn(3, 2, 8, dtype=torch.bfloat16)
    assert Attention(spec, None)(q, cache, metadata, None).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scales", ["tensor", "token"])
def test_8_bit_caches_against_float64(dtype, scales):
    """Attention over what was stored, so that rounding to 8 bits is not part of the tolerance."""
    spec = AttentionSpec(6, 3, 8, "float32", dtype, 4, 0.37, window=9, kv_scales=scales)
    queries, lengths = [1, 5, 13], [18, 5, 21]
    _, metadata, sequences = make_step(spec, queries, lengths)
    blocks, given = int(metadata.block_table.max()) + 1, torch.tensor([0.04, 0.05])
    cache = torch.full((2, blocks, 4 * 3 * (8 + 4 * (scales == "token"))), 0xFF, dtype=torch.uint8)
    operation = Attention(spec, None)
    operation.kv_scales = given
    paged, q = kv_of(cache, spec, Attention.layout, given), torch.randn(sum(queries), 6, 8)
    tables = [metadata.block_table[i, : -(-n // 4)] for i, n in enumerate(lengths)]
    for table, (k, v) in zip(tables, sequences, strict=True):
        slots = (table[:, None] * 4 + torch.arange(4)).flatten()[: len(k)]
        paged.write(k, v, slots)
    out = operation(q, cache, metadata, None).view(-1, 6, 8)
    starts = metadata.query_start_loc.tolist()
    for row, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        k, v = paged.gather(tables[row], length)
        assert 0 < (k - sequences[row][0]).abs().max() < 1
        for i in range(count):
            expected = oracle(spec, q[starts[row] + i], k, v, length - count + i, None)
            torch.testing.assert_close(
                out[starts[row] + i].double(), expected, rtol=1e-5, atol=1e-5
            )
