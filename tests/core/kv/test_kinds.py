"""The kinds' answers: what is held, read and written as a sequence grows."""

import pytest

from hotshoe.kv import KVCoordinator, StoredTokens
from hotshoe.kv.kinds import KINDS, Paged, State
from hotshoe.types.cache import WINDOW_STEP, CacheGroup, CacheSpec, held_blocks


def kind(name, **fields):
    return KINDS[name](CacheSpec(name, 4, (), **fields), 10)


def test_every_kind_that_a_layer_may_have_has_an_object():
    assert isinstance(kind("latent"), Paged) and isinstance(kind("state"), State)
    assert kind("window", window=3).drops and not kind("full").drops


def test_a_window_bounds_what_a_step_computes_of_one_sequence():
    """Of a budget of 8,192 tokens; so a long prompt never holds more than planned."""
    window = CacheSpec("window", 16, (), window=512)
    sequence = StoredTokens([])
    groups = [CacheGroup(window, (), 0), CacheGroup(CacheSpec("full", 16, ()), (), 1)]
    cache = KVCoordinator([290, 2048], 16, False, groups=groups, step_tokens=8192)
    assert held_blocks(window, 32_768, 8192) == 289
    cache.admit(sequence, cache.no_prefix(), 0)
    start, most = 0, 0
    while start < 32_768:
        stop = cache.step_end(start, min(start + 8192, 32_768))
        assert stop - start == WINDOW_STEP
        assert cache.grow(sequence, start, stop, [])
        most = max(most, cache.stats().num_used_blocks - stop // 16)
        start = stop
    assert 256 < most <= 289
    assert cache.step_end(start, start + 1) == start + 1
    plain = KVCoordinator([9], 16, False, step_tokens=8192)
    assert plain.step_end(0, 8192) == 8192


def test_a_chunk_is_read_from_its_begin():
    chunked = kind("window", window=8, chunked=True)
    assert [chunked.first_read(n) for n in (0, 1, 7, 8, 9, 15, 16, 30)] == [0, 0, 0, 2, 2, 2, 4, 6]


def test_one_state_takes_one_column_however_long_its_sequence():
    state = kind("state")
    assert [state.num_columns(n) for n in (0, 1, 4, 99)] == [0, 1, 1, 1]
    assert [state.num_blocks_for(n) for n in (0, 1, 99)] == [0, 1, 1]
    assert state.capacity(1) is None and not state.shares and not state.drops


@pytest.mark.parametrize("checkpoints", ["align", "all"])
def test_kept_states_are_read_from_the_last_token_on(checkpoints):
    state = kind("state", checkpoints=checkpoints)
    assert [state.first_read(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert [state.num_columns(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert state.shares and state.drops and not state.at_once
    assert state.num_blocks_for(99) == (2 if checkpoints == "align" else 4)
    behind = kind("state", checkpoints=checkpoints, drafts=3)
    # A whole block of accepted drafts and one token, and drafts behind it.
    assert behind.num_blocks_for(99) == (3 if checkpoints == "align" else 5)
    fewer = kind("state", checkpoints=checkpoints, drafts=2)
    assert checkpoints == "all" or fewer.num_blocks_for(99) == 2


def test_aligned_states_leave_columns_out_that_a_step_passes():
    state = kind("state", checkpoints="align")
    assert [state.first_written(n) for n in (1, 4, 5, 16)] == [0, 0, 1, 3]
    assert kind("state", checkpoints="all").first_written(16) == 0


@pytest.mark.parametrize(
    ("start", "stop", "end"),
    [(0, 3, 3), (0, 4, 4), (0, 10, 8), (4, 7, 7), (4, 9, 8), (5, 20, 8), (5, 7, 7), (7, 8, 8)],
)
def test_aligned_steps_end_with_a_block_if_they_can(start, stop, end):
    assert kind("state", checkpoints="align").step_end(start, stop) == end
    for other in (kind("full"), kind("state"), kind("state", checkpoints="all")):
        assert other.step_end(start, stop) == stop
