"""Which groups a step completes; the kit's cases check the rest of both references."""

import pytest
import torch

from hotshoe.slots import AttentionMetadata
from hotshoe.slots.reference.compressed import completed, places_of


def metadata(requests) -> AttentionMetadata:
    """Describe requests of (tokens of this step, all tokens)."""
    starts = torch.tensor([0, *(count for count, _ in requests)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in requests]).int()
    slots = torch.zeros(int(starts[-1])).int()
    most = max(count for count, _ in requests), int(lengths.max())
    return AttentionMetadata(len(requests), starts, lengths, slots, slots, *most)


@pytest.mark.parametrize(
    "requests",
    [
        [(1, 4)],
        [(1, 5)],
        [(9, 9), (1, 7), (1, 8), (3, 12)],
        [(1, 1), (2, 2), (1, 3)],
        [(1, 3), (5, 13), (1, 2)],
    ],
)
def test_groups_that_end_in_a_step_are_found(requests) -> None:
    found, last, some = completed(metadata(requests), 4)
    wanted = [
        (i, at)
        for i, (count, length) in enumerate(requests)
        for at in range(length - count, length)
        if (at + 1) % 4 == 0
    ]
    got = list(zip(found.tolist(), last.tolist(), strict=True))
    assert bool(some) == bool(wanted)
    filler = wanted[-1] if wanted else (0, 0)
    assert got == wanted + [filler] * (len(got) - len(wanted))


def test_tokens_have_the_positions_of_their_requests() -> None:
    requests, positions = places_of(metadata([(2, 9), (1, 1), (3, 3)]), 6)
    assert requests.tolist() == [0, 0, 1, 2, 2, 2]
    assert positions.tolist() == [7, 8, 0, 0, 1, 2]
