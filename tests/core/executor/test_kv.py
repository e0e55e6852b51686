"""What may pass between two caches, and how each refusal names its field and its remedy."""

from dataclasses import replace

import pytest

from hotshoe.errors import KVTransferError, UserError
from hotshoe.executor import KVBlocks, KVDescriptor, check_transfer
from hotshoe.executor.kv import check_movable, check_windows, first_kept, heads_of
from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.types import CachePart, CacheSpec
from hotshoe.types.rows import RowForm


def layer(
    layout: KVLayout = PLAIN_LAYOUT,
    heads: int = 2,
    dim: int = 64,
    dtype: str = "bfloat16",
    block: int = 16,
    window: int | None = None,
    v_dim: int | None = None,
) -> CacheSpec:
    dims = (("k", layout.k_axes, dim), ("v", layout.v_axes, v_dim or dim))
    parts = tuple(
        CachePart(name, axes, layout.block_shape(axes, block, heads, own), dtype, layout.gap)
        for name, axes, own in dims
    )
    return CacheSpec("full" if window is None else "window", block, parts, window)


PACKED = KVLayout("", "hDtd", "hTdt", 2, gap=3)
HERE = KVDescriptor("abc", (layer(), layer()))


@pytest.mark.parametrize("layout", [PLAIN_LAYOUT, PACKED, KVLayout("", "hdt", "hDtd", 4)])
def test_heads_are_read_off_the_parts(layout: KVLayout) -> None:
    found = heads_of(layer(layout, 3, 32))
    assert (found.num_kv_heads, found.head_dim, found.v_head_dim) == (3, 32, 32)
    assert heads_of(layer(layout, 3, 32, v_dim=16)).v_head_dim == 16
    assert found.layout == replace(layout, name="")


def test_block_size_and_layout_may_differ() -> None:
    assert check_transfer(HERE, HERE) == ""
    assert (
        check_transfer(HERE, KVDescriptor("abc", (layer(PACKED, block=32), layer(block=32)))) == ""
    )


def test_types_convert_exactly_or_at_a_stated_cost() -> None:
    wide = KVDescriptor("abc", (layer(dtype="float32"), layer(dtype="float32")))
    assert check_transfer(HERE, wide) == ""
    assert "rounded" in check_transfer(wide, HERE)


def test_a_window_may_come_from_a_cache_that_keeps_all() -> None:
    assert check_transfer(HERE, KVDescriptor("abc", (layer(), layer(window=40)))) == ""


@pytest.mark.parametrize(
    ("other", "field", "remedy"),
    [
        (replace(HERE, version=1), "version", "run one version of Hotshoe"),
        (replace(HERE, model="xyz"), "model", "load the same model"),
        (replace(HERE, layers=(layer(),)), "layers", "load the same model"),
        (
            replace(HERE, layers=(layer(), layer(heads=1))),
            r"layers\[1\]\.num_kv_heads",
            "the same tensor_parallel_size",
        ),
        (replace(HERE, layers=(layer(dim=32), layer())), r"layers\[0\]\.head_dim", ""),
        (
            replace(HERE, layers=(layer(), layer(dtype="float16"))),
            r"layers\[1\]\.dtype",
            "use kv_cache_dtype bfloat16 on both sides",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(other: KVDescriptor, field: str, remedy: str) -> None:
    with pytest.raises(KVTransferError, match=f"{field} is .* there and .* here; .*{remedy}") as e:
        check_transfer(HERE, other)
    assert e.value.field == field.replace("\\", "")
    assert isinstance(e.value, UserError)


def test_what_a_window_has_dropped_is_not_there() -> None:
    windowed = KVDescriptor("abc", (layer(), layer(window=40)))
    with pytest.raises(KVTransferError, match=r"layers\[1\]\.window is 40 .*same max_model_len"):
        check_transfer(windowed, HERE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (CacheSpec("cross", 16, ()), r"layers\[1\] has a cache of kind cross"),
        (layer(block=8), r"layers\[1\] has blocks of 8 tokens and layers\[0\] of 16"),
    ],
)
def test_caches_that_cannot_be_moved(spec: CacheSpec, words: str) -> None:
    odd = KVDescriptor("abc", (layer(), spec))
    for check in (
        check_movable,
        lambda d: check_transfer(d, HERE),
        lambda d: check_transfer(HERE, d),
    ):
        with pytest.raises(KVTransferError, match=f"{words}.*compute the prompt here"):
            check(odd)


def test_only_the_latest_state_cannot_be_moved() -> None:
    with pytest.raises(KVTransferError, match="use state_cache_mode align or all") as caught:
        check_movable(KVDescriptor("abc", (CacheSpec("state", 16, ()),)))
    assert caught.value.field == "state_cache_mode"


def state(dtype: str = "float32", heads: int = 2, block: int = 16) -> CacheSpec:
    parts = (
        CachePart("conv", "td", (3, 8), "bfloat16"),
        CachePart("state", "hdn", (heads, 4, 4), dtype),
    )
    return CacheSpec("state", block, parts, checkpoints="align")


def latent(row: int = 40, dtype: str = "bfloat16", block: int = 16) -> CacheSpec:
    return CacheSpec("latent", block, (CachePart("latent", "td", (block, row), dtype),))


def eight_bits(kind: str = "int8") -> CacheSpec:
    return CacheSpec("latent", 16, RowForm(32, 16, "bfloat16", kind).parts("latent", 16))


def test_latents_convert_to_eight_bits_and_back() -> None:
    def cost(ours: CacheSpec, theirs: CacheSpec) -> str:
        return check_transfer(*(KVDescriptor("abc", (spec,)) for spec in (ours, theirs)))

    assert cost(latent(48), eight_bits()) == "cached numbers are rounded to int8"
    assert "float8_e4m3fn" in cost(eight_bits(), eight_bits("float8_e4m3fn"))
    assert cost(eight_bits(), eight_bits()) == cost(eight_bits(), latent(48, "float32")) == ""
    assert "8 significant bits" in cost(eight_bits(), latent(48))


def test_latents_and_states_convert_as_keys_and_values_do() -> None:
    ours, theirs = (KVDescriptor("abc", (spec,)) for spec in (latent(), latent(block=32)))
    assert check_transfer(ours, theirs) == ""
    ours, theirs = (KVDescriptor("abc", (state(dtype),)) for dtype in ("float32", "bfloat16"))
    assert "rounded" in check_transfer(ours, theirs)
    assert check_transfer(theirs, ours) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "field", "remedy"),
    [
        (latent(), layer(), "kind", "load the same model"),
        (layer(), state(), "kind", "load the same model"),
        (latent(), latent(row=36), "channels", "load the same model"),
        (latent(), latent(dtype="float16"), "dtype", "kv_cache_dtype bfloat16"),
        (eight_bits(), latent(48, "float16"), "dtype", "kv_cache_dtype int8"),
        (state(), state(heads=1), "parts", "the same tensor_parallel_size"),
        (state(), state(block=32), "block_tokens", "use the same block_size"),
        (state(), state(dtype="float16"), "dtype", "use state_dtype float32"),
    ],
)
def test_latents_and_states_that_differ(
    ours: CacheSpec, theirs: CacheSpec, field: str, remedy: str
) -> None:
    there, here = KVDescriptor("abc", (ours,)), KVDescriptor("abc", (theirs,))
    with pytest.raises(KVTransferError, match=remedy) as caught:
        check_transfer(there, here)
    assert caught.value.field == f"layers[0].{field}"


def test_windows_of_larger_blocks_begin_before_those_of_smaller_ones() -> None:
    """Of 24 tokens, larger blocks take 16, and their window begins before the one that came."""
    tokens = list(range(24))
    blocks = KVBlocks(KVDescriptor("abc", (layer(block=4, window=9),)), tokens, ())
    check_windows(blocks, blocks.descriptor)
    check_windows(blocks, KVDescriptor("abc", (layer(block=8, window=9),)))
    with pytest.raises(KVTransferError, match="use the same block_size"):
        check_windows(blocks, KVDescriptor("abc", (layer(block=16, window=9),)))


def test_first_kept() -> None:
    assert first_kept(layer(), 100) == 0
    assert [first_kept(layer(window=17), n) for n in (16, 31, 32, 100)] == [0, 0, 1, 5]


@pytest.mark.parametrize("scales", ["none", "tensor", "token"])
def test_eight_bits_become_what_attention_reads(scales: str) -> None:
    behind = tuple(CachePart(f"{name}_scale", "ht", (2, 16), "float32") for name in "kv")
    plain = layer(dtype="float8_e4m3fn")
    spec = replace(plain, parts=plain.parts + behind * (scales == "token"))
    given = {0: (0.5, 2.0)} if scales == "tensor" else {}
    ours = KVDescriptor("abc", (spec,), given)
    assert heads_of(spec) == heads_of(plain)
    assert check_transfer(ours, ours) == ""
    wide, brain, half = (
        KVDescriptor("abc", (layer(dtype=dtype),)) for dtype in ("float32", "bfloat16", "float16")
    )
    assert check_transfer(ours, wide) == ""
    assert "8 significant bits" in check_transfer(ours, brain)
    others = (KVDescriptor("abc", (plain,), {0: (0.5, 1.0)}), wide, brain, half)
    for other in others:
        assert check_transfer(other, ours) == "cached numbers are rounded to float8_e4m3fn"
    with pytest.raises(KVTransferError, match=r"layers\[0\]\.dtype .* use kv_cache_dtype fp8 on"):
        check_transfer(ours, half)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    form = KVDescriptor("abc", (layer(dtype="float8_e4m3fn"),), {0: (1.0, 1.0)})
    with pytest.raises(KVTransferError, match=r"scales\[0\] is .* there"):
        check_transfer(replace(form, scales={0: (1.0, scale)}), form)
