"""8-bit floats with scales by block on sm_90: which kernel multiplies, its numbers on a GPU.

No interpreter runs these kernels. Elsewhere stand-ins take the launches.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.platforms.cuda.test_packed import hopper  # noqa: F401
from tests.platforms.triton import test_blocks
from tests.platforms.triton.conftest import DEVICE, device_facts
from torch import Tensor
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec
from hotshoe_cuda import blocks
from hotshoe_cuda.kernels import blocks as kernels
from hotshoe_cuda.kernels import many_blocks as of_many
from hotshoe_triton import blocks as portable

H200 = device_facts("sm_90", units=132)
HERE = replace(H200, device=DEVICE)
SPEC = LinearSpec(512, 208, "bfloat16", weight=portable.WEIGHT, activation=test_blocks.GROUPS)
ROWS = (1, 2, 17, 33, 37)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(torch.seed() % 2**32)


class StandIns:
    """Take launches of the kernels and calls of cuBLAS, and compute what they ask for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.library: list[int] = []
        self.rows: list[int] = []
        self.many: list[tuple[int, int]] = []
        patch.setattr(kernels, "streamed_blocks", Launched(self.launch))
        patch.setattr(of_many, "many_blocks", Launched(self.launch_many))
        patch.setattr(torch, "_scaled_mm", self.scaled_mm)

    def launch(
        self, grid: tuple[int, int], y: Tensor, x_desc: Any, w_desc: Any, bias: Tensor,
        w_scale: Tensor, x_scale: Tensor, partial: Tensor, counters: Tensor, num_rows: int, n: int,
        width: int, split: int, steps: int, **constants: Any,
    ) -> None:  # fmt: skip
        block_n, block_m = constants["BLOCK_N"], constants["BLOCK_M"]
        assert grid == (-(-n // block_n), split) and not counters.any()
        assert split * steps * 2 >= width and len(counters) >= grid[0]
        assert w_desc.block_shape == [block_n, 256] and x_desc.block_shape == [block_m, 256]
        assert num_rows == len(x_desc.base) <= block_m
        assert split == 1 or partial.numel() == split * grid[0] * block_n * block_m
        y.copy_(scaled(x_desc.base, w_desc.base, x_scale.T, w_scale))
        if constants["BIAS"]:
            y.add_(bias)
        self.rows.append(num_rows)

    def launch_many(
        self, grid: tuple[int], y_desc: Any, x_desc: Any, w_desc: Any, bias: Tensor,
        w_scale: Tensor, x_scale: Any, partial: Tensor, counters: Tensor, num_rows: int, n: int,
        width: int, split: int, units: int, **constants: Any,
    ) -> None:  # fmt: skip
        y, x = y_desc.base, x_desc.base
        outputs = w_desc.block_shape[0]
        tiles = -(-num_rows // 128) * -(-n // outputs)
        assert y.shape == (num_rows, n) and len(x) == num_rows and not num_rows % 4
        assert units == tiles * split and grid == (min(132, units),) and not width % (4 * split)
        assert split == 1 or partial.numel() == units * 128 * 128
        assert split == 1 or (len(counters) >= 2 * tiles and not counters.any())
        assert constants["SPLIT"] == (split > 1) and (split == 1 or outputs == 128)
        y.copy_(scaled(x, w_desc.base, x_scale.base.view(width, num_rows).T, w_scale))
        if constants["BIAS"]:
            y.add_(bias)
        self.many.append((num_rows, outputs))

    def scaled_mm(
        self, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *, out_dtype: torch.dtype
    ) -> Tensor:
        assert len(x) % 4 == 0 and x_scale.stride() == (1, len(x)) and w_scale.stride(0) == 1
        self.library.append(len(x))
        return scaled(x, w.T, x_scale, w_scale.T).to(out_dtype)


class Launched:
    """Something that is launched as a kernel is."""

    def __init__(self, launch: Any) -> None:
        self._launch = launch

    def __getitem__(self, grid: Any) -> Any:
        return partial(self._launch, grid)


def scaled(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    wide = x.double() * x_scale.double().repeat_interleave(128, 1)
    rows = w_scale.double().repeat_interleave(128, 0)[: len(w)].repeat_interleave(128, 1)
    return wide @ (w.double() * rows).T


def check(
    spec: LinearSpec, facts: DeviceFacts, rng: torch.Generator, more: tuple[int, ...] = (),
    **sizes: Any,
) -> None:  # fmt: skip
    """Compare with float64 for all numbers of rows, and for `more`, on fresh numbers."""
    tensors = test_blocks.stored(spec, rng, **sizes)
    operation = blocks.Linear(spec, facts)
    operation.load(tensors)
    for count in ROWS + more:
        x = test_blocks.rows(spec, count, rng)
        wanted = test_blocks.product(spec, tensors, operation, x)
        y = operation(x)
        assert (y.shape, y.dtype) == ((count, spec.out_features), getattr(torch, spec.dtype))
        assert (y.double() - wanted).norm() < test_blocks.TOLERANCE[spec.dtype] * wanted.norm()
        assert torch.equal(y, operation(x))
    assert not operation._counters.any()


@pytest.mark.parametrize(
    ("dtype", "bias"),
    [
        ("bfloat16", True),
        ("float16", False),
        pytest.param("bfloat16", False, marks=pytest.mark.slow),
        pytest.param("float16", True, marks=pytest.mark.slow),
    ],
)
def test_rows_choose_their_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: str, bias: bool, rng: torch.Generator
) -> None:
    stand_ins = StandIns(monkeypatch)
    monkeypatch.setattr(blocks, "SOME", 33)
    monkeypatch.setattr(blocks, "MANY", 41)
    check(replace(SPEC, bias=bias, dtype=dtype), HERE, rng, (41,), sizes=(128, 80))
    assert stand_ins.rows == [1, 1, 2, 2, 17, 17]
    between = [(40, 128), (40, 128)] if dtype == "float16" else []  # cuBLAS has no such results
    assert stand_ins.many == [(36, 128), (36, 128), *between, (44, 256), (44, 256)]
    assert stand_ins.library == ([] if between else [40, 40])


@pytest.mark.parametrize(
    ("changes", "sizes", "launched"),
    [
        ({"in_features": 384}, (128, 80), 6),  # three scales a row
        ({"out_features": 200}, (128, 72), 6),
        ({}, (80, 128), 0),  # parts share a block
    ],
)
def test_the_portable_kernel_takes_what_they_cannot(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sizes: tuple[int, int],
    launched: int, rng: torch.Generator,
) -> None:  # fmt: skip
    stand_ins = StandIns(monkeypatch)
    check(replace(SPEC, **changes), HERE, rng, sizes=sizes)
    assert len(stand_ins.rows) == launched and not stand_ins.many and not stand_ins.library


def test_loading_again_writes_where_it_lies(rng: torch.Generator) -> None:
    operation = blocks.Linear(SPEC, HERE)
    operation.load(test_blocks.stored(SPEC, rng, (128, 80)))
    address = operation._by_row.data_ptr()
    operation.load(test_blocks.stored(SPEC, rng, (128, 80)))
    assert operation._by_row.data_ptr() == address
    assert torch.equal(operation._by_row, operation.state()["weight_scale"].T)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "interpreter" in blocks.supports(SPEC, H200).reason or DEVICE != "cpu"
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert blocks.supports(SPEC, H200).score == portable.supports(SPEC, H200).score + 1
    assert "lacks sm_90's wgmma" in blocks.supports(SPEC, replace(H200, arch="sm_89")).reason
    wide = replace(SPEC, out_dtype="float32")
    assert "bfloat16, float32 are not all of" in blocks.supports(wide, H200).reason
    assert "scales of 128x128" in blocks.supports(replace(SPEC, activation=None), H200).reason


def test_programs_are_there_at_once_and_each_has_work() -> None:
    for n, k in ((6144, 4096), (28672, 4096), (4096, 14336), (64, 256), (1000, 1408)):
        for rows in blocks.FEW:
            config = blocks.stream(rows, n, k // 128, H200)
            programs = -(-n // config.block_n) * config.split_k
            assert config.split_k == 1 or programs <= 2 * 132
            assert config.split_k == 1 or k // 128 >= 8 * config.split_k
            resident = 2 if programs > 132 else 1
            size = (config.block_n + max(16, rows)) * config.block_k
            assert rows > 4 or 190 * 1024 <= resident * config.stages * size <= 226 * 1024


def test_long_rows_are_divided_while_multiprocessors_are_free() -> None:
    """Each part has blocks in fours, and each tile two counters."""
    parts = {(64, 4096, 112): 4, (256, 4096, 112): 2, (512, 4096, 112): 1, (64, 4096, 32): 1}
    parts |= {(4096, 16, 112): 1, (64, 128, 56): 2, (64, 128, 60): 1}
    for shape, wanted in parts.items():
        assert blocks.parts(*shape, H200) == wanted


@pytest.mark.slow
def test_it_compiles() -> None:
    """In a process of its own, as this one interprets."""
    code = inspect.getsource(compile_streamed) + "\ncompile_streamed()"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def compile_streamed() -> None:
    import torch

    from hotshoe.platform import DeviceFacts
    from hotshoe.slots import LinearSpec, QuantSpec
    from hotshoe_cuda.blocks import Linear
    from hotshoe_triton.blocks import WEIGHT
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, usage

    facts = DeviceFacts("cuda", "meta", "", "sm_90", 1 << 30, 132)
    x = QuantSpec("fp8_e4m3", "group", 128, dynamic=True)
    for n, k, counts in ((28672, 4096, (1, 16, 32, 4096)), (4096, 14336, (1, 64))):
        operation = Linear(LinearSpec(k, n, "bfloat16", weight=WEIGHT, activation=x), facts)
        weight = torch.empty(n, k, dtype=torch.float8_e4m3fn, device="meta")
        scale = torch.empty(n // 128, k // 128, device="meta")
        operation.load({"weight": [weight], "weight_scale": [scale]})
        for rows in counts:
            with Compiling(ARCHS["sm_90"]) as compiling:
                operation(torch.empty(rows, k, dtype=torch.bfloat16, device="meta"))
            [_, (name, compiled)] = compiling.compiled
            assert name == ("streamed_blocks" if rows <= 32 else "many_blocks")
            assert usage(ARCHS["sm_90"], compiled)[1] == 0, "registers are spilled"


@pytest.mark.parametrize("many", [33, 1024])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "k", "sizes"),
    [
        (208, 512, (128, 80)),
        (200, 384, (128, 72)),
        (208, 512, (80, 128)),
        (17000, 640, (16896, 104)),
        (4096, 2048, (4096,)),
        (400, 7168, (256, 144)),
    ],
)
def test_products(
    hopper: DeviceFacts, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str,  # noqa: F811
    n: int, k: int, sizes: tuple[int, ...], many: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(blocks, "MANY", many)
    spec = replace(SPEC, dtype=dtype, in_features=k, out_features=n)
    check(spec, hopper, rng, (32, 300), sizes=sizes)
    check(replace(spec, bias=True), hopper, rng, (32, 300), sizes=sizes)
