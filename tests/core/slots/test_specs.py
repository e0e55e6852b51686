"""KV layouts: the shape of a block in every axis order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.slots import PLAIN_LAYOUT, KVLayout


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


def test_layouts_compare_by_value():
    assert KVLayout("plain", "thd", "thd") == PLAIN_LAYOUT
    assert hash(KVLayout("plain", "thd", "thd", 2)) != hash(PLAIN_LAYOUT)
