"""Packed integers on sm_90: what the kernel is for, how it is launched, its numbers on a GPU.

No interpreter runs that kernel. Elsewhere a stand-in takes the launches.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from tests.platforms.triton import test_groups
from tests.platforms.triton.conftest import DEVICE, device_facts
from torch import Tensor
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear as PlainLinear
from hotshoe_cuda import packed
from hotshoe_cuda.kernels import one_row
from hotshoe_cuda.kernels import packed as kernels
from hotshoe_triton import groups

H200 = device_facts("sm_90", units=132)
HERE = replace(H200, device=DEVICE)
GROUPED = QuantSpec("int4", "group", 128)
SPEC = LinearSpec(1152, 72, "bfloat16", weight=GROUPED)
ROWS = (1, 8, 9, 16, 31, 33, 64)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(torch.seed() % 2**32)


class StandIn:
    """Takes launches of the kernel, and computes what they ask for."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(
            y: Tensor, x_desc: Any, words_desc: Any, scale: Tensor, zero: Tensor, bias: Tensor,
            partial: Tensor, counters: Tensor, num_rows: int, n: int, k: int, steps: int,
            **constants: Any,
        ) -> None:  # fmt: skip
            span, split, block_n = (constants[name] for name in ("SPAN", "SPLIT_K", "BLOCK_N"))
            words, x = words_desc.base.view(-1, n, span), x_desc.base
            assert grid == (-(-n // block_n), split) and len(counters) >= grid[0]
            assert split * steps >= len(words) and not counters.any()
            assert words_desc.block_shape == [block_n, span]
            assert x_desc.block_shape == [constants["BLOCK_M"], 4 * span]
            assert num_rows == len(x) <= constants["BLOCK_M"]
            assert split == 1 or partial.numel() == split * num_rows * n
            places = [words.int() >> 4 * place & 15 for place in range(4)]
            values = torch.cat(places, 2).transpose(0, 1).reshape(n, -1)[:, :k]
            if constants["ZEROS"] == "bytes":
                sizes = torch.tensor(groups.DOUBLED, device=x.device)
                places = [(scale >> 8 * place & 127).to(torch.uint8) for place in range(4)]
                by = torch.stack(places).view(4, len(words), 4, n).permute(1, 0, 2, 3)
                by = by.reshape(-1, n).contiguous().view(torch.float8_e4m3fn)
                values = torch.cat([sizes, -sizes])[values] / groups.BYTE_FACTOR / 2
                scale, zero = by.float() * zero, torch.zeros_like(zero)[None].expand(by.shape)
            if constants["ZEROS"] == "none":
                sizes = torch.tensor(groups.DOUBLED, device=x.device)
                values, zero = torch.cat([sizes, -sizes])[values], torch.zeros_like(scale)
            if constants["ZEROS"] == "inside":
                bits = scale.view(torch.int32)
                zero, scale = (bits & 31).double(), (bits & -32).view(torch.float32)
            elif constants["ZEROS"] == "half":
                zero = torch.full_like(scale, 8)
            at = torch.arange(k, device=x.device) // min(constants["GROUP"], k)
            sums = x.double() @ ((values.double() - zero.T[:, at]) * scale.T[:, at].double()).T
            y.copy_(sums + bias if constants["BIAS"] else sums)
            self.launched.append(grid)

        return launch


class StandInAlone:
    """Takes launches of the kernel of one row, and computes with integers of x as it does."""

    def __init__(self) -> None:
        self.launched: list[int] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(
            y: Tensor, x: Tensor, words_desc: Any, scale_desc: Any, bias: Tensor, n: int, k: int,
            tiles: int, steps: int, **constants: Any,
        ) -> None:  # fmt: skip
            block_n, padded = constants["BLOCK_N"], constants["PADDED"]
            assert tiles * block_n >= n > (tiles - 1) * block_n and 1 <= grid[0] <= tiles
            assert padded >= steps * 1024 >= k > (steps - 1) * 1024
            ring = constants["STAGES"] * 4 * block_n * 136
            assert constants["num_warps"] == block_n // 4 and ring + 2 * padded <= 112 << 10
            turns = -(-tiles // grid[0])
            assert 1 <= constants["STAGES"] <= turns * steps
            assert words_desc.block_shape == [4, block_n, 128] and words_desc.base.shape[1] == n
            assert scale_desc.block_shape == [2, 4, block_n] and scale_desc.base.shape[2] == n
            words = words_desc.base.view(torch.int16).int()
            places = [words >> 4 * place & 15 for place in range(4)]
            values = torch.cat(places, 2).transpose(0, 1).reshape(n, -1, 128)
            scale = scale_desc.base.transpose(0, 1).reshape(-1, n)
            zero = torch.full_like(scale, 8).long()
            if constants["ZEROS"] == "inside":
                bits = scale.view(torch.int32)
                zero, scale = (bits & 31).long(), (bits & -32).view(torch.float32)
            groups_of_x = x.double().view(-1, 128)
            largest = groups_of_x.abs().amax(1, keepdim=True)
            unit = 2.0 ** (largest.clamp(min=2.0**-113).log2().floor() - 13)
            whole = (groups_of_x / unit).round().long()
            assert whole.abs().amax() <= 1 << 14
            sums = ((values.long() - zero.T[:, :, None]) * whole).sum(2)
            sums = (sums * unit.T * scale.T.double()).sum(1)
            y.copy_((sums + bias if constants["BIAS"] else sums)[None])
            self.launched.append(grid[0])

        return launch


@pytest.mark.parametrize("zeros", ["half", "inside", "apart"])
def test_one_row_is_launched(
    monkeypatch: pytest.MonkeyPatch, zeros: str, rng: torch.Generator
) -> None:
    stand_in, alone = StandIn(), StandInAlone()
    monkeypatch.setattr(kernels, "packed", stand_in)
    monkeypatch.setattr(one_row, "one_row", alone)
    form = replace(GROUPED, symmetric=zeros == "half")
    for n, k in ((72, 1280), (4300, 512), (72, 1152), (70, 1280), (72, 16640)):
        spec = LinearSpec(k, n, "bfloat16", weight=form, bias=n == 72)
        operation, expected = packed.Linear(spec, HERE), PlainLinear(spec, HERE)
        tensors = test_groups.stored(spec, rng, fractions=zeros == "apart")
        operation.load(tensors)
        expected.load(tensors)
        for count in (1, 2):
            x = test_groups.rows(spec, count, rng)
            x[:, :128] *= 1e-20
            x[:, 128:256] = 0
            wanted = expected(x).float()
            assert (operation(x).float() - wanted).norm() < 4e-3 * wanted.norm()
    suited = 0 if zeros == "apart" else 2
    assert alone.launched == [5, 135][:suited] and len(stand_in.launched) == 10 - suited


@pytest.mark.slow
def test_one_row_compiles() -> None:
    """In a process of its own, as this one interprets."""
    code = inspect.getsource(compile_one_row) + "\ncompile_one_row()"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def compile_one_row() -> None:
    import torch

    from hotshoe.platform import DeviceFacts
    from hotshoe.slots import LinearSpec, QuantSpec
    from hotshoe_cuda.packed import Linear
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, usage

    facts = DeviceFacts("cuda", "meta", "", "sm_90", 1 << 30, 132)
    weight = QuantSpec("int4", "group", 128, symmetric=False)
    operation = Linear(LinearSpec(14336, 4096, "bfloat16", weight=weight), facts)
    operation.load(
        {
            "weight": [torch.empty(4096, 14336, dtype=torch.int8, device="meta")],
            "weight_scale": [torch.empty(4096, 112, device="meta")],
            "weight_zero_point": [torch.empty(4096, 112, dtype=torch.int32, device="meta")],
        }
    )
    with Compiling(ARCHS["sm_90"]) as compiling:
        operation(torch.empty(1, 14336, dtype=torch.bfloat16, device="meta"))
    [(_, compiled)] = compiling.compiled
    assert compiled.name == "one_row"
    assert 2 * compiled.metadata.shared <= 226 << 10, "two programs do not fit a multiprocessor"
    assert usage(ARCHS["sm_90"], compiled)[1] == 0, "registers are spilled"


@pytest.mark.parametrize(
    "name", ["group", "zero points", "fractions", "channel", "order", "floats", "floats by bytes"]
)
def test_launches(monkeypatch: pytest.MonkeyPatch, name: str, rng: torch.Generator) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(kernels, "packed", stand_in)
    form = "zero points" if name == "fractions" else name
    spec = replace(SPEC, weight=test_groups.FORMS[form], bias=name == "group")
    operation, expected = packed.Linear(spec, HERE), PlainLinear(spec, HERE)
    tensors = test_groups.stored(spec, rng, fractions=name == "fractions")
    operation.load(tensors)
    expected.load(tensors)
    for count in ROWS:
        x = test_groups.rows(spec, count, rng)
        wanted = expected(x).float()
        assert (operation(x).float() - wanted).norm() < 4e-3 * wanted.norm()
    assert len(stand_in.launched) == len(ROWS)


def test_the_portable_kernels_take_what_it_cannot(
    monkeypatch: pytest.MonkeyPatch, rng: torch.Generator
) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(kernels, "packed", stand_in)
    operation, expected = packed.Linear(SPEC, HERE), PlainLinear(SPEC, HERE)
    tensors = test_groups.stored(SPEC, rng)
    operation.load(tensors)
    expected.load(tensors)
    wide = torch.randn(129, 1160, device=DEVICE, generator=rng).bfloat16()
    for x in (wide[:2, 1:1153], wide[:129, :1152]):  # begins odd; more rows
        wanted = expected(x).float()
        assert (operation(x).float() - wanted).norm() < 8e-3 * wanted.norm()
    assert stand_in.launched == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float32"}, "element type float32"),
        ({"weight": QuantSpec("int8", "group", 128)}, "do not have four bits"),
        ({"weight": replace(GROUPED, group_size=96)}, "groups of 96"),
        ({"weight": replace(GROUPED, group_size=16)}, "4-bit floats alone"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str) -> None:
    assert "interpreter" in packed.supports(SPEC, H200).reason or DEVICE != "cpu"
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    assert packed.supports(SPEC, H200).score == groups.supports(SPEC, H200).score + 1
    assert "lacks sm_90's wgmma" in packed.supports(SPEC, replace(H200, arch="sm_80")).reason
    assert reason in packed.supports(replace(SPEC, **changes), H200).reason


def test_programs_are_there_at_once_and_each_has_work() -> None:
    for n, k in ((6144, 4096), (28672, 4096), (4096, 14336), (64, 256), (1000, 1408)):
        for rows in packed.TILES:
            config = packed.stream(rows, replace(SPEC, in_features=k, out_features=n), 256, H200)
            programs, steps = -(-n // config.block_n) * config.split_k, -(-k // 256)
            assert config.split_k == 1 or programs <= packed.WARPS // config.warps * 132
            assert steps >= config.split_k


@pytest.fixture
def hopper(gpu: str) -> DeviceFacts:
    """Facts of a GPU that runs the kernel."""
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    return DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("size", "zeros"),
    [
        *product([None, 32, 64, 128, 512], ["half", "inside", "apart", "none"]),
        (groups.STRIP, "bytes"),
    ],
)
def test_products(hopper, rng, dtype: str, size: int | None, zeros: str) -> None:
    stored_as = "fp4_e2m1" if zeros in ("none", "bytes") else "int4"
    even = zeros not in ("inside", "apart")
    form = QuantSpec(stored_as, "group" if size else "channel", size, symmetric=even)
    for n, k in ((1000, 1536), (37, 528 if size == groups.STRIP else 512), (200, 2048)):
        spec = LinearSpec(k, n, dtype, weight=form, bias=n == 200)
        operation, expected = packed.Linear(spec, hopper), PlainLinear(spec, hopper)
        tensors = test_groups.stored(spec, rng, fractions=zeros == "apart")
        operation.load(tensors)
        expected.load(tensors)
        assert operation._zeros == zeros
        for count in ROWS:
            x = test_groups.rows(spec, count, rng)
            y, wanted = operation(x), expected(x).double()
            assert (y.double() - wanted).norm() < 8e-3 * wanted.norm()
            assert torch.equal(y, operation(x))
        assert not operation._counters.any()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("zeros", ["half", "inside"])
def test_one_row_of_any_range(hopper, rng, zeros: str, dtype: str, bias: bool) -> None:
    """Groups have factors of their own; what is not finite stays so."""
    form = QuantSpec("int4", "group", 128, symmetric=zeros == "half")
    for n, k in ((1056, 1280), (4096, 4096), (200, 14336)):
        spec = LinearSpec(k, n, dtype, weight=form, bias=bias)
        operation, expected = packed.Linear(spec, hopper), PlainLinear(spec, hopper)
        tensors = test_groups.stored(spec, rng)
        operation.load(tensors)
        expected.load(tensors)
        x = test_groups.rows(spec, 1, rng)
        x[:, :128] *= 1e-20 if dtype == "bfloat16" else 1e-4
        x[:, 128:256] = 0
        x[:, 300] = 200
        y, wanted = operation(x), expected(x).double()
        assert (y.double() - wanted).norm() < 4e-3 * wanted.norm()
        assert torch.equal(y, operation(x))
        x[:, k - 1] = float("inf")
        assert not operation(x).isfinite().any()
        x[:, k - 1] = float("nan")
        assert operation(x).isnan().all()
