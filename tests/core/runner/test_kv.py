"""KV blocks keep their tokens through every layout, block size and exact conversion of types."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.executor import KVBlocks, KVDescriptor
from hotshoe.executor.kv import first_kept
from hotshoe.layers.cache import stored_as
from hotshoe.runner.kv import cache_parts, converted, read_blocks, write_blocks
from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import PagedKV, QuantizedKV
from hotshoe.slots.reference.rows import packed, unpacked
from hotshoe.types import CachePart, CacheSpec
from hotshoe.types.rows import RowForm

LAYOUTS = [
    PLAIN_LAYOUT,
    KVLayout("head-major", "htd", "htd"),
    KVLayout("head-major, apart", "htd", "htd", gap=5),
    KVLayout("transposed", "hdt", "htd"),
    KVLayout("pairs", "hDtd", "hTdt", 2),
]
HEADS, HEAD_DIM = 2, 8
#: Scales of all keys and of all values.
GIVEN = (0.01, 0.04)


@dataclass(frozen=True)
class Form:
    """One layer's cache, with the layout that its parts say."""

    dtype: str
    block_size: int
    layout: KVLayout
    window: int | None = None
    scales: str = "none"

    @property
    def own(self) -> KVDescriptor:
        return KVDescriptor("m", (self.spec,), {0: GIVEN} if self.scales == "tensor" else {})

    @property
    def spec(self) -> CacheSpec:
        sizes = (self.block_size, HEADS, HEAD_DIM)
        parts = tuple(
            CachePart(
                name, axes, self.layout.block_shape(axes, *sizes), self.dtype, self.layout.gap
            )
            for name, axes in (("k", self.layout.k_axes), ("v", self.layout.v_axes))
        )
        if self.scales == "token":
            shape = (HEADS, self.block_size)
            parts += tuple(CachePart(f"{name}_scale", "ht", shape, "float32") for name in "kv")
        return CacheSpec("full", self.block_size, parts, self.window)


def empty(form: Form, num_blocks: int) -> torch.Tensor:
    numel = form.block_size * HEADS * HEAD_DIM
    shape = (2, num_blocks, numel + form.layout.gap)
    return torch.full(shape, torch.nan, dtype=torch_dtype(form.dtype))[..., :numel]


def paged(cache: torch.Tensor, form: Form) -> PagedKV:
    return PagedKV(cache, form.layout, form.block_size, HEADS, HEAD_DIM)


forms = st.builds(
    Form,
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from(LAYOUTS),
)


@given(forms, forms, st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_tokens_survive(source: Form, target: Form, num_blocks: int, first: int, seed: int) -> None:
    """Blocks are read from a shuffled cache, converted, and written into another shuffled one."""
    draw = torch.Generator().manual_seed(seed)
    count = num_blocks * source.block_size
    k, v = torch.randn((2, count, HEADS, HEAD_DIM), generator=draw)
    dtypes = (torch_dtype(source.dtype), torch_dtype(target.dtype))
    there = empty(source, num_blocks + 2)
    ids = torch.randperm(num_blocks + 2, generator=draw)[:num_blocks]
    slots = (ids[:, None] * source.block_size + torch.arange(source.block_size)).reshape(-1)
    paged(there, source).write(k, v, slots)
    blocks = KVBlocks(source.own, [0] * count, [read_blocks(there, ids.tolist())])

    wanted = range(min(first, count // target.block_size), count // target.block_size)
    content = converted(blocks, 0, target.own, wanted)
    here = empty(target, len(wanted) + 3)
    own = torch.randperm(len(wanted) + 3, generator=draw)[: len(wanted)]
    write_blocks(here, own.tolist(), content)
    found = paged(here, target).gather(own, len(wanted) * target.block_size)
    tokens = slice(wanted.start * target.block_size, wanted.stop * target.block_size)
    for part, expected in zip(found, (k, v), strict=True):
        assert torch.equal(part, expected[tokens].to(dtypes[0]).to(dtypes[1]))
    assert here.isnan().any(-1).sum() == 2 * 3  # no other block was touched


@pytest.mark.parametrize("layout", LAYOUTS)
def test_narrow_values_survive(layout: KVLayout) -> None:
    """As a layer lays them out: blocks of keys and values are equally far apart."""
    there, here = (AttentionCache(each, 5) for each in (layout, PLAIN_LAYOUT))
    k, v = torch.randn(8, HEADS, HEAD_DIM), torch.randn(8, HEADS, 5)
    there.paged.write(k, v, torch.arange(8) + 4)
    content = read_blocks(there.cache, [1, 2])
    forms = [KVDescriptor("m", (each.spec,)) for each in (there, here)]
    blocks = KVBlocks(forms[0], [0] * 8, [content])
    write_blocks(here.cache, [3, 0], converted(blocks, 0, forms[1], range(2)))
    for found, expected in zip(here.paged.gather(torch.tensor([3, 0]), 8), (k, v), strict=True):
        assert torch.equal(found, expected)


class AttentionCache:
    """A cache of blocks of 4 tokens whose values are narrow."""

    def __init__(self, layout: KVLayout, v_dim: int) -> None:
        numel = 4 * HEADS * HEAD_DIM
        narrow = 4 * HEADS * v_dim
        k, v = (
            CachePart(name, axes, layout.block_shape(axes, 4, HEADS, dim), "float32", gap)
            for name, axes, dim, gap in (
                ("k", layout.k_axes, HEAD_DIM, layout.gap),
                ("v", layout.v_axes, v_dim, layout.gap + numel - narrow),
            )
        )
        self.spec = CacheSpec("full", 4, (k, v))
        self.cache = torch.full((2, 5, numel + layout.gap), torch.nan)[..., :numel]
        self.paged = PagedKV(self.cache, layout, 4, HEADS, HEAD_DIM, v_dim)


def test_equal_caches_pass_bytes_on() -> None:
    form = Form("bfloat16", 4, LAYOUTS[-1])
    content = list(torch.randn(2, 5, 4 * HEADS * HEAD_DIM).bfloat16())
    renamed = Form("bfloat16", 4, KVLayout("same bytes", "hDtd", "hTdt", 2, gap=3)).own
    blocks = KVBlocks(form.own, [0] * 20, [content])
    found = converted(blocks, 0, renamed, range(1, 4))
    for part, ours in zip(found, content, strict=True):
        assert part.data_ptr() == ours[1:].data_ptr() and torch.equal(part, ours[1:4])


def test_windows_come_without_their_beginning() -> None:
    """Of 40 tokens, a window of 9 has blocks 8 and 9 of 4; both layouts find the same tokens."""
    plain = Form("float32", 4, PLAIN_LAYOUT, window=9)
    assert first_kept(plain.spec, 40) == 8
    content = torch.randn(2, 2, 4 * HEADS * HEAD_DIM)
    blocks = KVBlocks(plain.own, [0] * 40, [content])
    assert torch.equal(torch.stack(converted(blocks, 0, plain.own, range(9, 10))), content[:, 1:])
    paired = Form("float32", 8, LAYOUTS[-1], window=9)
    made = torch.stack(converted(blocks, 0, paired.own, range(4, 5)))
    found = paged(made, paired).gather(torch.tensor([0]), 8)
    for part, kept in zip(found, content, strict=True):
        assert torch.equal(part, kept.view(8, HEADS, HEAD_DIM))


NARROW = [
    *(("int8", "token"), ("float8_e4m3fn", "token"), ("float8_e4m3fn", "tensor")),
    ("float8_e5m2", "none"),
]
WIDE = [("bfloat16", "none"), ("float32", "none")]


@pytest.mark.parametrize("source", NARROW)
def test_quantized_blocks_keep_numbers_and_scales(source: tuple[str, str]) -> None:
    """From blocks of 4 to blocks of 8 in another layout, bit for bit."""
    found, expected = moved(source, source)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("source", [*NARROW, *WIDE])
@pytest.mark.parametrize("target", [*NARROW, *WIDE])
def test_other_numbers_are_written_as_a_step_would(source, target) -> None:
    found, expected = moved(source, target)
    form = Form(target[0], 8, LAYOUTS[-1], scales=target[1])
    other = blank(form, 2)
    view(other, form).write(*expected, torch.arange(16))
    for ours, theirs in zip(found, view(other, form).gather(torch.arange(2), 16), strict=True):
        assert torch.equal(ours, theirs)


def blank(form: Form, count: int) -> torch.Tensor:
    numel, kind = stored_as(form.spec)
    assert kind == torch.uint8 or form.dtype in ("bfloat16", "float32")
    assert 2 * numel * kind.itemsize == form.spec.block_bytes
    return torch.full((2, count, numel * kind.itemsize), 0xFF, dtype=torch.uint8).view(kind)


def view(cache: torch.Tensor, form: Form) -> QuantizedKV | PagedKV:
    if cache.dtype != torch.uint8:
        return paged(cache, form)
    sizes = (form.block_size, HEADS, HEAD_DIM)
    return QuantizedKV(cache, form.dtype, form.layout, sizes, form.scales, torch.tensor(GIVEN))


def moved(source: tuple[str, str], target: tuple[str, str]) -> list[tuple[torch.Tensor, ...]]:
    """Return keys and values that arrive in a cache, and those of the cache they come from."""
    forms = [
        Form(dtype, size, layout, scales=scales)
        for (dtype, scales), size, layout in (
            (source, 4, PLAIN_LAYOUT),
            (target, 8, LAYOUTS[-1]),
        )
    ]
    there, here = (blank(form, count) for form, count in zip(forms, (6, 3), strict=True))
    ids = torch.tensor([4, 1, 0, 3])
    slots = (ids[:, None] * 4 + torch.arange(4)).flatten()
    view(there, forms[0]).write(*torch.randn(2, 16, HEADS, HEAD_DIM), slots)
    blocks = KVBlocks(forms[0].own, [0] * 16, [read_blocks(there, ids.tolist())])
    write_blocks(here, [2, 0], converted(blocks, 0, forms[1].own, range(2)))
    assert (here[:, 1].contiguous().view(torch.uint8) == 0xFF).all()
    found = view(here, forms[1]).gather(torch.tensor([2, 0]), 16)
    return [found, view(there, forms[0]).gather(ids, 16)]


def test_latents_keep_their_tokens_in_blocks_of_another_size() -> None:
    """Blocks of 4 tokens into the second block of 8, and into another type."""
    rows = torch.randn(16, 5)
    form, wider = (
        KVDescriptor(
            "m", (CacheSpec("latent", size, (CachePart("latent", "td", (size, 5), dtype),)),)
        )
        for size, dtype in ((4, "float32"), (8, "bfloat16"))
    )
    blocks = KVBlocks(form, [0] * 16, [[rows.view(4, 20)]])
    [found] = converted(blocks, 0, wider, range(1, 2))
    assert torch.equal(found, rows[8:].bfloat16().view(1, 40))


def test_latents_become_eight_bits_and_numbers_again() -> None:
    plain, narrow = RowForm(37, 0, "float32", "float32"), RowForm(32, 5, "float32", "int8")
    forms = [
        KVDescriptor("m", (CacheSpec("latent", 4, form.parts("latent", 4)),))
        for form in (plain, narrow)
    ]
    rows = torch.randn(8, 37)
    blocks = KVBlocks(forms[0], [0] * 8, [[rows.view(2, -1)]])
    [found] = converted(blocks, 0, forms[1], range(1, 2))
    assert torch.equal(found.view(4, -1), packed(narrow, rows[4:]))
    back = KVBlocks(forms[1], [0] * 4, [[found]])
    [again] = converted(back, 0, forms[0], range(1))
    assert torch.equal(again.view(4, 37), unpacked(narrow, packed(narrow, rows[4:])))


def test_a_state_comes_from_the_last_block() -> None:
    """Of 12 tokens in blocks of 4 there is one state, and a part of it changes its type."""

    def form(dtype: str) -> CacheSpec:
        parts = (
            CachePart("conv", "td", (3, 2), "float32"),
            CachePart("state", "hdn", (2, 2, 2), dtype),
        )
        return CacheSpec("state", 4, parts, checkpoints="align")

    conv, state = torch.randn(1, 6), torch.randn(1, 8)
    blocks = KVBlocks(KVDescriptor("m", (form("float32"),)), [0] * 12, [[conv, state]])
    assert first_kept(form("float32"), 12) == 2
    found = converted(blocks, 0, KVDescriptor("m", (form("bfloat16"),)), range(2, 3))
    assert torch.equal(found[0], conv) and torch.equal(found[1], state.bfloat16())


@pytest.mark.parametrize(("kind", "count"), [("latent", 1), ("state", 1), ("state", 2)])
def test_blocks_are_written_where_the_layer_keeps_them(kind: str, count: int) -> None:
    """Latents are one tensor, states a tuple: of a short convolution it has one part."""

    class Layer:
        part = CachePart("part", "td", (2, 3), "float32")
        cache_spec = CacheSpec(kind, 2, (part,) * count)
        held = tuple(torch.zeros(4, 2, 3) for _ in range(count))
        cache = held if kind == "state" else held[0]

    parts = cache_parts(Layer())
    assert [part.shape for part in parts] == [(4, 6)] * count
    fresh = [torch.randn(2, 6) for _ in parts]
    write_blocks(parts, [3, 1], fresh)
    for memory, content in zip(Layer.held, fresh, strict=True):
        assert torch.equal(memory[[3, 1]].flatten(1), content) and not memory[[0, 2]].any()
