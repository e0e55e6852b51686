"""Which request a tile belongs to, and which tiles of keys need a mask: against brute force."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platforms.triton.conftest import DEVICE

from hotshoe.platform import DeviceFacts
from hotshoe_triton.kernels.prefill import key_tiles, request_of_tile


@triton.jit
def requests(out_ptr, starts_ptr, num_reqs, BLOCK_Q: tl.constexpr, BLOCK_R: tl.constexpr):
    """Write the request of every tile."""
    tile = tl.program_id(0)
    tl.store(out_ptr + tile, request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q, BLOCK_R))


@settings(max_examples=25)
@given(
    queries=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    block_q=st.sampled_from([1, 4, 5, 16]),
)
def test_every_query_lies_in_one_tile_of_its_request(queries: list[int], block_q: int) -> None:
    starts = torch.tensor([0, *queries]).cumsum(0).int().to(DEVICE)
    tiles = int(starts[-1]) // block_q + len(queries)
    out = torch.full((tiles,), -1, dtype=torch.int32, device=DEVICE)
    requests[(tiles,)](out, starts, len(queries), BLOCK_Q=block_q, BLOCK_R=4)
    covered = []
    for tile, request in enumerate(out.tolist()):
        start = int(starts[request])
        first = (tile - start // block_q - request) * block_q
        assert first >= 0
        covered += [(request, q) for q in range(first, min(first + block_q, queries[request]))]
    assert covered == [(r, q) for r, count in enumerate(queries) for q in range(count)]


@triton.jit
def bounds(out_ptr, first_pos, last_pos, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write the four bounds."""
    low, full_low, full_high, high = key_tiles(first_pos, last_pos, WINDOW, BLOCK_N)
    tl.store(out_ptr, low)
    tl.store(out_ptr + 1, full_low)
    tl.store(out_ptr + 2, full_high)
    tl.store(out_ptr + 3, high)


@pytest.mark.parametrize("window", [0, 1, 5, 16, 40])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 8), (7, 8), (16, 16), (33, 5), (90, 30)])
def test_tiles_without_a_mask_are_seen_whole(
    facts: DeviceFacts, window: int, first: int, count: int
) -> None:
    last, size = first + count - 1, 16
    out = torch.full((4,), -1, dtype=torch.int32, device=facts.device)
    # Positions as tensors, as in the kernel, and not as constants.
    bounds[(1,)](out, first, last, WINDOW=window, BLOCK_N=size)
    low, full_low, full_high, high = out.tolist()
    assert low <= full_low <= full_high <= high

    def seen(query: int, key: int) -> bool:
        return key <= query and (not window or key > query - window)

    for tile in range(last // size + 2):
        pairs = [
            seen(q, k)
            for q in range(first, last + 1)
            for k in range(tile * size, tile * size + size)
        ]
        assert any(pairs) <= (low <= tile < high)
        if full_low <= tile < full_high:
            assert all(pairs)
