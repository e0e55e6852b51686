"""Shares of the list of all tiles, compared with a list."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from tests.platforms.cuda.played import Kernel
from tests.platforms.triton.conftest import ON_DEVICE

from hotshoe_cuda.kernels import stretches

#: Stores what a program learns, and the request of every tile of its stretch.
WALK = """
@gluon.jit
def found(
    out_ptr, starts_ptr, seq_lens_ptr, num_reqs, UNIFORM: gl.constexpr, WINDOW: gl.constexpr,
    TILE: gl.constexpr, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr, MOST: gl.constexpr,
    num_warps: gl.constexpr,
):
    size, at, end, request, begin = shares(
        starts_ptr, seq_lens_ptr, num_reqs, UNIFORM, WINDOW, TILE, MIN_TILES, BLOCK_R
    )
    out_ptr += gl.program_id(1) * MOST * 2
    if at < end:
        seq_len = gl.load(seq_lens_ptr + request)
        stop = begin + tiles_of(seq_len, WINDOW, TILE)
        base = first_tile(seq_len, WINDOW, TILE) - begin
        for tile in range(at, end):
            gl.store(out_ptr, request)
            gl.store(out_ptr + 1, tile + base)
            out_ptr += 2
            request, seq_len, stop, base = onward(
                tile + 1, end, request, seq_len, stop, base, starts_ptr, seq_lens_ptr, UNIFORM,
                WINDOW, TILE,
            )
"""


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("uniform", [True, False])
def test_every_tile_has_one_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uniform: bool, window: int
) -> None:
    if ON_DEVICE:
        pytest.skip("kernels run on the device here")
    kernel = tmp_path / "walk.py"
    kernel.write_text(WALK)
    found = Kernel([Path(stretches.__file__), kernel], "found", tmp_path, monkeypatch)
    lens = [random.randrange(200) for _ in range(9)]
    counts = [1] * 9 if uniform else [random.choice((1, 1, 3)) for _ in lens]
    expected = []
    for i, (length, count) in enumerate(zip(lens, counts, strict=True)):
        first = max(length - window, 0) // 16 if window else 0
        last = max(-(-length // 16), first + 1)
        expected += [(i, tile) for tile in range(first, last)] * (count == 1)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    most = max(-(-len(expected) // 5), 2)
    out = torch.full((5, most, 2), -1, dtype=torch.int32)
    constants = {"UNIFORM": uniform, "WINDOW": window, "TILE": 16, "MIN_TILES": 2, "BLOCK_R": 64}
    found[(1, 5)](
        out,
        starts,
        torch.tensor(lens).int(),
        9,
        num_warps=2,
        launch_pdl=True,
        MOST=most,
        **constants,
    )
    tiles = [tuple(tile) for tile in out.flatten(0, 1).tolist() if tile != [-1, -1]]
    assert tiles == expected
