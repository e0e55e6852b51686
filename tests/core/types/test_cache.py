"""How many blocks a sequence holds at once."""

import pytest

from hotshoe.types.cache import CachePart, CacheSpec, held_blocks

PARTS = (CachePart("k", "td", (16, 4), "bfloat16"),)


@pytest.mark.parametrize(
    ("window", "num_tokens", "step", "blocks"),
    [
        (None, 100, 1, 7),
        (1, 100, 1, 2),
        (16, 100, 1, 2),
        (17, 100, 1, 3),
        (16, 100, 49, 5),
        (16, 20, 49, 2),
        (500, 100, 1, 7),
    ],
)
def test_blocks_that_a_sequence_holds_at_once(window, num_tokens, step, blocks) -> None:
    kind = "full" if window is None else "window"
    assert held_blocks(CacheSpec(kind, 16, PARTS, window), num_tokens, step) == blocks


def test_no_window_is_overrun() -> None:
    """Sequences that grow by steps of every size hold no more than is said."""
    for window in range(1, 40):
        for step in (1, 2, 7, 16, 33):
            spec = CacheSpec("window", 16, PARTS, window)
            for start in range(0, 200, step):
                first = max(start - window + 1, 0) // 16
                assert -(-(start + step) // 16) - first <= held_blocks(spec, start + step, step)
