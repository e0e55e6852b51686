"""KV layouts: the shape of a block in every axis order. Fields of specifications: since when."""

import math
from dataclasses import MISSING, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.plugins import HOOK_API
from hotshoe.slots import PLAIN_LAYOUT, SLOTS, KVLayout, QuantSpec


@pytest.mark.parametrize(
    ("axes", "pack", "shape"),
    [
        ("thd", 1, (16, 3, 8)),
        ("htd", 1, (3, 16, 8)),
        ("hDtd", 2, (3, 4, 16, 2)),
        ("hTdt", 2, (3, 8, 8, 2)),
        ("hTDtd", 4, (3, 4, 2, 4, 4)),
    ],
)
def test_block_shapes(axes, pack, shape):
    assert KVLayout("x", axes, axes, pack).block_shape(axes, 16, 3, 8) == shape


@given(
    st.permutations("hTtDd"),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_a_block_never_changes_its_size(axes, pack, heads, tokens, channels):
    layout = KVLayout("x", "".join(axes), "".join(axes), pack)
    shape = layout.block_shape(layout.k_axes, tokens * pack, heads, channels * pack)
    assert math.prod(shape) == tokens * pack * heads * channels * pack


@pytest.mark.parametrize("axes", ["hxd", "ht", "thdd", "hDT", "HTdt", ""])
def test_axes_that_are_none_are_refused(axes):
    for k_axes, v_axes, name in ((axes, "thd", "k_axes"), ("thd", axes, "v_axes")):
        with pytest.raises(ValueError, match=rf"KVLayout\.{name} has h, t and d"):
            KVLayout("x", k_axes, v_axes, 2)


def test_gaps_are_not_negative():
    with pytest.raises(ValueError, match=r"KVLayout\.gap is -1"):
        KVLayout("x", "thd", "thd", gap=-1)


def test_layouts_compare_by_value():
    assert KVLayout("plain", "thd", "thd") == PLAIN_LAYOUT
    assert hash(KVLayout("plain", "thd", "thd", 2)) != hash(PLAIN_LAYOUT)


#: The fields that every candidate of hook API 1 knows. Later ones say since when they are there.
FIRST = {
    "attention": "num_heads num_kv_heads head_dim dtype kv_dtype block_size scale window softcap "
    "sinks",
    "rotary_and_cache": "num_heads num_kv_heads head_dim rotary_dim dtype kv_dtype block_size "
    "layout interleaved qk_norm_eps qk_norm_offset",
    "linear": "in_features out_features dtype bias weight activation out_dtype",
    "rms_norm": "hidden_size eps dtype weight_offset quant",
    "add_rms_norm": "hidden_size eps dtype weight_offset residual_scale quant",
    "gated_activation": "size activation dtype quant",
    "embedding": "num_embeddings size dtype scale",
    "sample": "vocab_size",
    "transfer": "max_steps_in_flight",
    "graph": "max_num_seqs pieces operations",
    "communicator": "size",
}
FIRST_QUANT = "format granularity group_size block_shape symmetric dynamic online packing"


@pytest.mark.parametrize(
    ("record", "first"),
    [*((SLOTS[name].spec_type, first) for name, first in FIRST.items()), (QuantSpec, FIRST_QUANT)],
)
def test_a_field_that_came_later_says_so_and_has_a_default(record, first: str):
    for field in fields(record):
        if field.name not in first.split():
            assert 1 < field.metadata["since"] <= HOOK_API
            assert field.default is not MISSING
