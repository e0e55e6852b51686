"""How decode programs share the tiles of all requests: completely, evenly, and consistently."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from hotshoe.platform import DeviceFacts
from hotshoe_triton.kernels.decode import locate, owner, share, share_begin, tile_ends


@triton.jit
def shares(out_ptr, owners_ptr, total, programs, BLOCK: tl.constexpr):
    """Write every program's begin and end, and the owner of every tile."""
    for program in range(programs):
        tl.store(out_ptr + 2 * program, share_begin(program, total, programs))
        tl.store(out_ptr + 2 * program + 1, share_begin(program + 1, total, programs))
    tile = tl.arange(0, BLOCK)
    tl.store(owners_ptr + tile, owner(tile, total, programs), mask=tile < total)


@pytest.mark.parametrize(("total", "programs"), [(1, 1), (3, 7), (7, 7), (50, 7), (64, 1), (13, 5)])
def test_shares_cover_all_tiles_evenly(facts: DeviceFacts, total: int, programs: int) -> None:
    bounds = torch.zeros(programs, 2, dtype=torch.int32, device=facts.device)
    owners = torch.full((total,), -1, dtype=torch.int32, device=facts.device)
    shares[(1,)](bounds, owners, total, programs, BLOCK=64)
    found = bounds.tolist()
    assert found[0][0] == 0
    assert found[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    sizes = [end - begin for begin, end in found]
    assert max(sizes) - min(sizes) <= 1
    expected = [p for p, (begin, end) in enumerate(found) for _ in range(begin, end)]
    assert owners.tolist() == expected


@triton.jit
def places(
    out_ptr, starts_ptr, lengths_ptr, num_reqs, num_programs, UNIFORM: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, MIN_TILES: tl.constexpr,
):  # fmt: skip
    """Write for every tile of the list: program, request, tile of the request."""
    end_R = tile_ends(starts_ptr, lengths_ptr, num_reqs, UNIFORM, WINDOW, BLOCK_N, BLOCK_R)
    program = tl.program_id(1)
    at, end, _total, _programs = share(end_R, program, False, MIN_TILES, BLOCK_R)
    while at < end:
        request, _seq_len, low, begin, _stop = locate(at, end_R, lengths_ptr, WINDOW, BLOCK_N)
        tl.store(out_ptr + at * 3, program)
        tl.store(out_ptr + at * 3 + 1, request)
        tl.store(out_ptr + at * 3 + 2, at - begin + low)
        at += 1


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("programs", [1, 5, 12])
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("least", [1, 4])
def test_every_tile_is_visited_once(
    facts: DeviceFacts, window: int, programs: int, uniform: bool, least: int
) -> None:
    lengths, queries = [33, 0, 16, 70, 1], [1, 1, 1, 1, 1] if uniform else [1, 1, 3, 1, 2]
    expected = []
    for request, length in enumerate(lengths):
        first = max(length - window, 0) // 16 if window else 0
        count = max(-(-length // 16) - first, 1) if queries[request] == 1 else 0
        expected += [[request, first + i] for i in range(count)]
    starts = torch.tensor([0, *queries]).cumsum(0).int().to(facts.device)
    seq_lens = torch.tensor(lengths).int().to(facts.device)
    out = torch.full((len(expected), 3), -1, dtype=torch.int32, device=facts.device)
    places[(1, programs)](
        out, starts, seq_lens, len(lengths), programs, UNIFORM=uniform, WINDOW=window, BLOCK_N=16,
        BLOCK_R=8, MIN_TILES=least,
    )  # fmt: skip
    rows = out.tolist()
    assert [row[1:] for row in rows] == expected
    workers = [row[0] for row in rows]
    assert workers == sorted(workers)
    assert len(set(workers)) == min(programs, len(expected), -(-len(expected) // least))
