"""What attention keeps: its kind by windows and chunks, and the blocks of narrow values."""

from dataclasses import replace

import pytest

from hotshoe.layers.attention_cache import attention_cache, prepare_of
from hotshoe.slots import PLAIN_LAYOUT, AttentionSpec, KVLayout, whole_step

SPEC = AttentionSpec(4, 2, 8, "float32", "float32", 4, 0.3)


@pytest.mark.parametrize(
    ("window", "chunk", "kept"),
    [
        (None, None, ("full", None, False)),
        (31, None, ("window", 31, False)),
        (32, None, ("full", None, False)),
        (None, 28, ("window", 28, True)),
        (None, 32, ("full", None, False)),
    ],
)
def test_what_holds_the_longest_sequence_drops_nothing(window, chunk, kept):
    found = attention_cache(replace(SPEC, window=window), PLAIN_LAYOUT, 32, chunk)
    assert (found.kind, found.window, found.chunked) == kept
    assert (prepare_of(found, whole_step) is whole_step) != found.chunked


@pytest.mark.parametrize(("wide", "dim"), [(False, 5), (True, 8)])
def test_blocks_of_keys_and_values_are_equally_far_apart(wide, dim):
    layout = KVLayout("apart", "htd", "htd", gap=6, wide_values=wide)
    k, v = attention_cache(replace(SPEC, v_head_dim=5), layout, 32, None).parts
    assert (k.shape, v.shape) == ((2, 4, 8), (2, 4, dim))
    assert k.nbytes == v.nbytes == (2 * 4 * 8 + 6) * 4
