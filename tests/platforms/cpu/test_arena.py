"""Results of a recorded step: what lives never overlaps, and what has died is used again."""

import gc
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_cpu.arena import ALIGNMENT, Arena

TYPES = (torch.bfloat16, torch.float32, torch.int64)


def span(x: torch.Tensor) -> range:
    return range(x.data_ptr(), x.data_ptr() + x.nbytes)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 70), st.sampled_from(TYPES)), max_size=30)
)
def test_what_lives_keeps_its_content(sizes: list[tuple[int, int, torch.dtype]]) -> None:
    arena, rng = Arena(1 << 14), random.Random(len(sizes))
    alive: list[tuple[torch.Tensor, int]] = []
    for number, (rows, width, dtype) in enumerate(sizes):
        found = arena.empty((rows, width), dtype)
        if found is None:
            alive.pop(0)
            continue
        assert found.shape == (rows, width) and found.dtype == dtype and found.is_contiguous()
        assert not any(set(span(found)) & set(span(other)) for other, _ in alive)
        # What a view of it still sees lives on.
        alive.append((found.fill_(number % 100).view(-1)[1:], number % 100))
        del found
        while len(alive) > 3:
            alive.pop(rng.randrange(len(alive)))
        assert all((x == value).all() for x, value in alive)
    assert arena.peak <= 1 << 14


def test_equal_steps_find_equal_places() -> None:
    arena = Arena(1 << 12)

    def step() -> list[int]:
        arena.restart()
        places = []
        x = arena.empty((2, 8), torch.float32)
        for width in (16, 4, 16, 8):
            assert x is not None
            places.append(x.data_ptr())
            x = arena.empty((2, width), torch.float32)
        return places

    first = step()
    assert len(set(first)) == 2, "two results live at once"
    assert step() == first
    assert arena.peak <= 4 * 2 * 16 + ALIGNMENT


def test_a_result_that_dies_later_frees_nothing_of_the_next_step() -> None:
    arena = Arena(1 << 10)
    old = arena.empty((1, 16), torch.float32)
    arena.restart()
    new = arena.empty((1, 16), torch.float32)
    assert old is not None and new is not None
    assert new.data_ptr() == old.data_ptr(), "steps share the memory"
    del old
    gc.collect()
    other = arena.empty((1, 16), torch.float32)
    assert other is not None and other.data_ptr() != new.data_ptr()


@pytest.mark.parametrize("size", [(65, 16), (0, 4)])
def test_what_has_no_place(size: tuple[int, int]) -> None:
    assert Arena(1 << 12).empty(size, torch.float32) is None


def test_poison_is_no_number() -> None:
    arena = Arena(1 << 10)
    x = arena.empty((4, 4), torch.bfloat16)
    assert x is not None
    x.zero_()
    arena.poison()
    assert x.isnan().all()


def test_an_alias_takes_no_place() -> None:
    arena = Arena(1 << 12)
    found = arena.empty((4, 6), torch.float32)
    assert found is not None
    found.copy_(torch.arange(24.0).view(4, 6))
    begin, part = found.data_ptr(), found.t()[1:4]
    alias = arena.alias(part)
    assert torch.equal(alias, part) and alias.stride() == part.stride()
    other = torch.ones(2)
    assert arena.alias(other) is other
    del found, part
    again = arena.empty((4, 6), torch.float32)
    assert again is not None and again.data_ptr() == begin
    assert alias.data_ptr() == begin + 4
