"""A kernel written in Helion: refused without it, and computed here by a stand-in for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.platforms.cuda.conftest import defect_of

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, QuantSpec
from hotshoe_conformance.cases.norm import Rows
from hotshoe_cuda import helion

H200 = DeviceFacts("cuda", "cpu", "NVIDIA H200", "sm_90", 1 << 37, 132)
SPEC = AddNormSpec(64, 1e-5, "bfloat16")
KERNELS = "hotshoe_cuda.kernels.fused"


def tile(size: int) -> Iterator[slice]:
    """Give rows one by one, as the configuration says."""
    return (slice(at, at + 1) for at in range(size))


def kernel(config: dict, static_shapes: bool) -> Callable:
    """Leave a function as it is: what it does with tiles, PyTorch does with slices."""
    assert config["block_sizes"] == [1] and static_shapes is False
    return lambda function: function


@pytest.fixture
def package(library, monkeypatch) -> None:
    library("helion", helion.DISTRIBUTION, "1.5.1", kernel=kernel, Config=dict)
    root = sys.modules["helion"]
    library("helion.language", helion.DISTRIBUTION, "1.5.1", tile=tile)
    root.language = sys.modules["helion.language"]
    monkeypatch.setitem(sys.modules, "helion", root)
    monkeypatch.delitem(sys.modules, KERNELS, raising=False)
    yield
    sys.modules.pop(KERNELS, None)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("dtype", helion.DTYPES)
def test_it_computes_what_the_slot_says(package, dtype: str, factor: float, offset: float) -> None:
    spec = replace(SPEC, dtype=dtype, weight_offset=offset, residual_scale=factor)
    assert helion.supports(spec, H200).score == 40
    assert defect_of("add_rms_norm", helion.AddNorm, spec, Rows(5), H200) == ""


def test_without_the_package_it_is_refused() -> None:
    assert helion.supports(SPEC, H200).reason == "package helion is not installed"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (replace(SPEC, dtype="float64"), "float64 is not one of"),
        (replace(SPEC, quant=QuantSpec("int8", "token")), "not quantized"),
        (replace(SPEC, hidden_size=32768), "rows of 32768 exceed 16384"),
    ],
)
def test_refusals(package, spec: AddNormSpec, reason: str) -> None:
    verdict = helion.supports(spec, H200)
    assert not verdict.accepted and reason in verdict.reason


def test_other_releases_are_refused(library) -> None:
    library("helion", helion.DISTRIBUTION, "1.4.0")
    assert helion.supports(SPEC, H200).reason == "helion 1.4.0 is installed, and known are 1.5"
