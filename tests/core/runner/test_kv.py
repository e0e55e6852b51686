"""KV blocks keep their tokens through every layout, block size and exact conversion of types."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.executor import KVBlocks, KVDescriptor, KVLayer
from hotshoe.runner.kv import converted, read_blocks, write_blocks
from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import PagedKV

LAYOUTS = [
    PLAIN_LAYOUT,
    KVLayout("head-major", "htd", "htd"),
    KVLayout("head-major, apart", "htd", "htd", gap=5),
    KVLayout("transposed", "hdt", "htd"),
    KVLayout("pairs", "hDtd", "hTdt", 2),
]
HEADS, HEAD_DIM = 2, 8


def descriptor(dtype: str, block_size: int, layout: KVLayout) -> KVDescriptor:
    return KVDescriptor("m", dtype, block_size, (KVLayer(HEADS, HEAD_DIM, layout),))


def empty(form: KVDescriptor, num_blocks: int) -> torch.Tensor:
    numel = form.block_size * HEADS * HEAD_DIM
    shape = (2, num_blocks, numel + form.layers[0].layout.gap)
    return torch.full(shape, torch.nan, dtype=torch_dtype(form.dtype))[..., :numel]


def paged(cache: torch.Tensor, form: KVDescriptor) -> PagedKV:
    return PagedKV(cache, form.layers[0].layout, form.block_size, HEADS, HEAD_DIM)


forms = st.builds(
    descriptor,
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from(LAYOUTS),
)


@given(forms, forms, st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_tokens_survive(
    source: KVDescriptor, target: KVDescriptor, num_blocks: int, first: int, seed: int
) -> None:
    """Blocks are read from a shuffled cache, converted, and written into another shuffled one."""
    draw = torch.Generator().manual_seed(seed)
    count = num_blocks * source.block_size
    k, v = torch.randn((2, count, HEADS, HEAD_DIM), generator=draw)
    dtypes = (torch_dtype(source.dtype), torch_dtype(target.dtype))
    there = empty(source, num_blocks + 2)
    ids = torch.randperm(num_blocks + 2, generator=draw)[:num_blocks]
    slots = (ids[:, None] * source.block_size + torch.arange(source.block_size)).reshape(-1)
    paged(there, source).write(k, v, slots)
    blocks = KVBlocks(source, [0] * count, [read_blocks(there, ids.tolist())])

    wanted = range(min(first, count // target.block_size), count // target.block_size)
    content = converted(blocks, 0, target, wanted)
    here = empty(target, len(wanted) + 3)
    own = torch.randperm(len(wanted) + 3, generator=draw)[: len(wanted)]
    write_blocks(here, own.tolist(), content)
    found = paged(here, target).gather(own, len(wanted) * target.block_size)
    tokens = slice(wanted.start * target.block_size, wanted.stop * target.block_size)
    for part, expected in zip(found, (k, v), strict=True):
        assert torch.equal(part, expected[tokens].to(dtypes[0]).to(dtypes[1]))
    assert here.isnan().any(-1).sum() == 2 * 3  # no other block was touched


def test_equal_caches_pass_bytes_on() -> None:
    form = descriptor("bfloat16", 4, LAYOUTS[-1])
    content = torch.randn(2, 5, 4 * HEADS * HEAD_DIM).bfloat16()
    renamed = descriptor("bfloat16", 4, KVLayout("same bytes", "hDtd", "hTdt", 2, gap=3))
    found = converted(KVBlocks(form, [0] * 20, [content]), 0, renamed, range(1, 4))
    assert found.data_ptr() == content[:, 1:].data_ptr() and torch.equal(found, content[:, 1:4])
