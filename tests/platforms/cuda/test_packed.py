"""Packed integers on sm_90: what the kernel is for, how it is launched, its numbers on a GPU.

No interpreter runs that kernel. Elsewhere a stand-in takes the launches.
"""

from __future__ import annotations

from dataclasses import replace
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


@pytest.mark.parametrize(
    "name", ["group", "zero points", "fractions", "channel", "order", "floats"]
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
    wide = torch.randn(65, 1160, device=DEVICE, generator=rng).bfloat16()
    for x in (wide[:2, 1:1153], wide[:65, :1152]):  # begins odd; more rows
        wanted = expected(x).float()
        assert (operation(x).float() - wanted).norm() < 8e-3 * wanted.norm()
    assert stand_in.launched == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float32"}, "element type float32"),
        ({"weight": QuantSpec("int8", "group", 128)}, "do not have four bits"),
        ({"weight": replace(GROUPED, group_size=96)}, "groups of 96"),
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
@pytest.mark.parametrize("size", [None, 32, 64, 128, 512])
@pytest.mark.parametrize("zeros", ["half", "inside", "apart", "none"])
def test_products(hopper, rng, dtype: str, size: int | None, zeros: str) -> None:
    stored_as = "fp4_e2m1" if zeros == "none" else "int4"
    even = zeros in ("half", "none")
    form = QuantSpec(stored_as, "group" if size else "channel", size, symmetric=even)
    for n, k in ((1000, 1536), (37, 512), (200, 2048)):
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
