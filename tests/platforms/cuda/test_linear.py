"""Products on sm_90: which configurations there are, and how kernel `streamed` is launched.

No interpreter runs that kernel, so its numbers are proved on a GPU alone: ragged shapes, every
type, outputs that begin as NaN, launches that repeat. Elsewhere a stand-in takes the launches.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from tests.platforms.triton.conftest import DEVICE, device_facts
from torch import Tensor
from triton import knobs

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_cuda import linear
from hotshoe_cuda.kernels import streamed
from hotshoe_cuda.linear import Linear, missing, untuned
from hotshoe_cuda.targets import TUNED
from hotshoe_triton import tuned
from hotshoe_triton.device import ARCHS
from hotshoe_triton.tuning import BUCKETS, LinearConfig, default

H200 = device_facts("sm_90", units=132)
#: The same, where kernels run in these tests: other kernels run beside the stand-in.
HERE = replace(H200, device=DEVICE)
SPEC = LinearSpec(4096, 6144, "bfloat16")
STREAMED = LinearConfig("streamed", 64, 128, 1, 4, 4)


def quantized(spec: LinearSpec, format: str) -> LinearSpec:
    weight, token = QuantSpec(format, "channel", online=True), QuantSpec(format, "token", True)
    return replace(spec, weight=weight, activation=replace(token, dynamic=True))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton compile, as it does wherever there is a GPU."""
    monkeypatch.setattr(knobs.runtime, "interpret", False)


@pytest.mark.usefixtures("compiled")
def test_what_the_kernel_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(SPEC, H200) == missing(quantized(SPEC, "fp8_e4m3"), H200) == ""
    assert missing(replace(SPEC, dtype="float16"), H200) == ""
    assert "float32" in missing(replace(SPEC, dtype="float32"), H200)
    assert "int8" in missing(quantized(SPEC, "int8"), H200)
    for arch in sorted(set(ARCHS) - {"sm_90"}):
        assert missing(SPEC, replace(H200, arch=arch)) == f"{arch} lacks sm_90's wgmma"
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    assert "this is 3.99.0" in missing(SPEC, H200)
    monkeypatch.setattr(linear, "find_spec", lambda name: None)
    assert missing(SPEC, H200) == "Triton is not installed"


@pytest.mark.usefixtures("compiled")
def test_an_unknown_gluon_is_said_and_costs_only_that_kernel(monkeypatch) -> None:
    known = Linear.supports(SPEC, H200)
    assert known.accepted and "streamed" not in known.reason
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    verdict = Linear.supports(SPEC, H200)
    assert verdict.score == known.score
    assert verdict.reason.startswith("Triton kernels for sm_90, without `streamed`: it is written")
    assert Linear.supports(SPEC, replace(H200, arch="sm_80")).reason == "Triton kernels for sm_80"
    assert {c.kernel for c in Linear.configs(8, SPEC, H200)} == {"skinny", "library"}


def test_where_it_is_missing_a_table_that_names_it_gives_way(monkeypatch) -> None:
    operation = Linear(SPEC, H200, {(6144, 4096, b): STREAMED for b in BUCKETS})
    monkeypatch.setattr(linear, "missing", lambda spec, facts: "")
    assert {operation._config(bucket) for bucket in BUCKETS} == {STREAMED}
    monkeypatch.setattr(linear, "missing", lambda spec, facts: "for a reason")
    assert {operation._config(bucket).kernel for bucket in BUCKETS} == {"gemv", "skinny"}


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize(
    ("n", "k", "at_64"),
    [
        (96, 64, "streamed"),
        (896, 4864, "library"),
        (3072, 2048, "library"),
        (34816, 5120, "streamed"),
    ],
)
def test_shapes_that_nobody_tuned_stream(n: int, k: int, at_64: str, itemsize: int) -> None:
    chosen = {bucket: untuned(bucket, n, k, itemsize, H200) for bucket in BUCKETS}
    few = {bucket: c for bucket, c in chosen.items() if bucket <= 32 and bucket * itemsize != 2}
    assert {c.kernel for c in few.values()} == {"streamed"}
    for bucket, config in chosen.items():
        if config.kernel == "streamed":
            tile = (config.block_n + max(16, bucket)) * config.block_k * itemsize
            alone = -(-n // config.block_n) * config.split_k * 2 <= H200.compute_units
            room = ARCHS["sm_90"].shared_bytes // (1 if alone else 2)
            assert 2 <= config.stages <= room // tile
            assert config.split_k == 1 or k >= 6 * config.split_k * config.block_k
            programs = -(-n // config.block_n) * config.split_k
            assert config.split_k == 1 or programs <= H200.compute_units
    assert chosen[64].kernel == (at_64 if itemsize == 2 else "streamed")


def test_one_row() -> None:
    """Few long rows have a program each, or two of them one; of rows of 2,048 two have one."""
    chosen = {nk: untuned(1, *nk, 2, H200) for nk in ((3072, 8192), (896, 4864), (3072, 2048))}
    assert [(c.kernel, c.block_n, c.block_k) for c in chosen.values()] == [
        ("gemv", 1, 2048),
        ("gemv", 2, 2048),
        ("gemv", 2, 1024),
    ]
    assert untuned(1, 9728, 896, 2, H200) == LinearConfig("streamed", 64, 128, 1, 4, 5)
    for n, k in ((4096, 14336), (1152, 896), (151936, 896), (24576, 896)):
        assert untuned(1, n, k, 2, H200) == default(1, n, k, 2, H200)


def test_programs_that_are_few_keep_more_on_its_way() -> None:
    assert untuned(32, 896, 4864, 2, H200) == LinearConfig("streamed", 64, 128, 4, 4, 8)
    assert untuned(32, 896, 896, 2, H200) == LinearConfig("streamed", 64, 128, 1, 4, 4)
    assert untuned(32, 3072, 2048, 2, H200) == LinearConfig("streamed", 64, 128, 1, 4, 4)
    assert untuned(32, 4096, 4096, 2, H200) == LinearConfig("streamed", 64, 128, 2, 4, 4)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("spec", [SPEC, quantized(SPEC, "fp8_e4m3")], ids=["bfloat16", "fp8"])
@pytest.mark.parametrize("bucket", [1, 16, 64])
def test_a_tuner_tries_rings_that_fit(spec: LinearSpec, bucket: int) -> None:
    tried = [c for c in Linear.configs(bucket, spec, H200) if c.kernel == "streamed"]
    assert len(set(tried)) == len(tried) > 30
    itemsize = 2 if spec.weight is None else 1
    for config in tried:
        tile = (config.block_n + max(16, bucket)) * config.block_k * itemsize
        assert 2 <= config.stages <= 200 * 1024 // tile
        assert config.block_k * itemsize in (128, 256)
    assert not any(c.kernel == "streamed" for c in Linear.configs(8, quantized(spec, "int8"), H200))


class StandIn:
    """Takes launches of the kernel, and computes what they ask for."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def launch(
            y: Tensor, x_desc: Any, w_desc: Any, bias: Tensor, scale: Tensor, x_scale: Tensor,
            partial: Tensor, counters: Tensor, num_rows: int, n: int, split: int, steps: int,
            **constants: Any,
        ) -> None:  # fmt: skip
            x, w, k = x_desc.base, w_desc.base, w_desc.base.size(1)
            assert grid == (-(-n // constants["BLOCK_N"]), split) and n == w.size(0)
            assert split * steps * constants["BLOCK_K"] >= k, "all of K"
            assert (split * (steps - 1) * constants["BLOCK_K"]) < k, "no program without work"
            assert x_desc.block_shape == [constants["BLOCK_M"], constants["BLOCK_K"]]
            assert w_desc.block_shape == [constants["BLOCK_N"], constants["BLOCK_K"]]
            assert num_rows == len(x) <= constants["BLOCK_M"]
            assert constants["SPLIT"] == (split > 1) and constants["launch_pdl"]
            if split > 1:
                assert partial.numel() == grid[0] * split * constants["BLOCK_N"] * len_of(constants)
            assert len(counters) >= grid[0] and not counters.any()
            sums = x.float() @ w.float().T
            if constants["SCALED"]:
                sums = sums * x_scale[:, None] * scale
            y.copy_(sums + bias if constants["BIAS"] else sums)
            self.launched.append(grid)

        def len_of(constants: Any) -> int:
            return int(constants["BLOCK_M"])

        return launch


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("format", ["", "fp8_e4m3"])
@pytest.mark.parametrize("config", [STREAMED, replace(STREAMED, split_k=2)], ids=["one", "split"])
def test_launches(monkeypatch, config: LinearConfig, format: str, bias: bool) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(streamed, "streamed", stand_in)
    spec = replace(SPEC, in_features=528, out_features=100, bias=bias)
    spec = quantized(spec, format) if format else spec
    operation = Linear(spec, HERE)
    weight = torch.randn(100, 528, device=DEVICE).bfloat16()
    offset = torch.randn(100, device=DEVICE)
    operation.load({"weight": [weight]} | ({"bias": [offset]} if bias else {}))
    for bucket in BUCKETS:
        operation.configure(bucket, config)
    for rows in (1, 3, 33, 64):
        x = torch.randn(rows, 544, device=DEVICE).bfloat16()[:, :528]
        y = operation(x)
        expected = x.float() @ weight.float().T + (offset if bias else 0)
        error = (y.float() - expected).norm() / expected.norm()
        assert error < (0.2 if format else 4e-3)
    assert stand_in.launched == [(2, config.split_k)] * 4


@pytest.mark.parametrize("columns", [slice(1, 49), slice(0, 48)], ids=["begins odd", "odd stride"])
def test_rows_that_the_copy_engine_cannot_read(monkeypatch, columns: slice) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(streamed, "streamed", stand_in)
    operation = Linear(replace(SPEC, in_features=48, out_features=32), HERE)
    weight = torch.randn(32, 48, device=DEVICE).bfloat16()
    operation.load({"weight": [weight]})
    operation.configure(2, STREAMED)
    width = 49 if columns.start == 0 else 64
    x = torch.randn(2, width, device=DEVICE).bfloat16()[:, columns]
    torch.testing.assert_close(
        operation(x).float(), x.float() @ weight.float().T, rtol=0.02, atol=0.1
    )
    assert stand_in.launched == []


@pytest.fixture
def hopper(gpu: str) -> DeviceFacts:
    """Facts of a GPU that runs the kernel."""
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) != (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0")
    units = properties.multi_processor_count
    return DeviceFacts("cuda", gpu, properties.name, "sm_90", properties.total_memory, units)


@pytest.fixture
def rng(hopper: DeviceFacts) -> torch.Generator:
    """A generator with a new seed in each run; pytest shows the seed when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return torch.Generator(hopper.device).manual_seed(seed)


@pytest.fixture
def make(hopper: DeviceFacts, rng: torch.Generator):
    """Return a function that builds a product with random weights, and its weights in float32."""

    def make(spec: LinearSpec, config: LinearConfig) -> tuple[Linear, Tensor, Tensor]:
        operation, n = Linear(spec, hopper, {}), spec.out_features
        kind = getattr(torch, spec.dtype)
        weight = torch.randn(n, spec.in_features, device=hopper.device, generator=rng).to(kind)
        bias = torch.randn(n, device=hopper.device, generator=rng).to(kind)
        operation.load({"weight": [weight]} | ({"bias": [bias]} if spec.bias else {}))
        for bucket in BUCKETS:
            operation.configure(bucket, config)
        weight = operation._weight.float()
        if operation._scale is not None:
            weight = weight * operation._scale[:, None]
        return operation, weight, bias.float() if spec.bias else torch.zeros_like(bias).float()

    return make


def check(operation: Linear, weight: Tensor, bias: Tensor, x: Tensor) -> None:
    """Compare three runs into outputs of NaN, a row behind which must stay so."""
    pair = None if operation._quantize is None else operation._quantize(x)
    operand = x.float() if pair is None else pair[0].float() * pair[1][:, None]
    expected = operand @ weight.T + bias
    # Products of 8 bits are added in fewer than float32's bits.
    part, slack = (2**-8, 1e-3) if pair is None else (2**-6, 2e-2)
    bound = part * expected.abs() + slack * expected.std()
    launch = operation._launches[(len(x) - 1).bit_length()]
    found = []
    for _ in range(3):
        y = x.new_full((len(x) + 1, len(bias)), float("nan"), dtype=operation._y_dtype)
        launch(y[:-1], x, pair)
        assert y[-1].isnan().all()
        assert ((y[:-1].float() - expected).abs() <= bound).all()
        found.append(y[:-1])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not operation._counters.any()


TILES = [
    LinearConfig("streamed", 64, 64, 1, 4, 7),
    LinearConfig("streamed", 64, 128, 1, 4, 4),
    LinearConfig("streamed", 64, 128, 4, 4, 5),
    LinearConfig("streamed", 128, 128, 1, 4, 2),
    LinearConfig("streamed", 128, 128, 2, 8, 3),
    LinearConfig("streamed", 256, 128, 1, 8, 2),
    LinearConfig("streamed", 256, 64, 8, 8, 3),
]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "fp8_e4m3"])
@pytest.mark.parametrize("config", TILES, ids=str)
def test_streamed_products(make, hopper, rng, config: LinearConfig, kind: str) -> None:
    if kind == "fp8_e4m3":
        config = replace(config, block_k=2 * config.block_k)
    for n, k, bias in ((1000, 1552, True), (512, 2048, False), (72, 48, True)):
        spec = LinearSpec(k, n, "bfloat16" if kind == "fp8_e4m3" else kind, bias)
        operation, *expected = make(quantized(spec, kind) if kind == "fp8_e4m3" else spec, config)
        for rows in (1, 2, 7, 16, 17, 32, 61, 64):
            wide = torch.randn(rows, k + 16, device=hopper.device, generator=rng)
            wide = wide.to(getattr(torch, spec.dtype))
            check(operation, *expected, wide[:, :k])
            check(operation, *expected, wide[:, 3 : k + 3])  # another kernel, the same result


def test_results_wider_than_the_operands(make, hopper, rng) -> None:
    spec = LinearSpec(512, 200, "bfloat16", out_dtype="float32")
    operation, *expected = make(spec, replace(STREAMED, split_k=2))
    x = torch.randn(9, 512, device=hopper.device, generator=rng).bfloat16()
    check(operation, *expected, x)
    assert operation(x).dtype is torch.float32


def test_streamed_products_in_a_recorded_step(make, hopper, rng) -> None:
    operation, *_ = make(LinearSpec(1024, 1024, "bfloat16"), replace(STREAMED, split_k=2))
    x = torch.randn(5, 1024, device=hopper.device, generator=rng).bfloat16()
    operation(x)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        y = operation(operation(x).mul_(1 / 32))
    for _ in range(3):
        x.copy_(torch.randn(x.shape, device=hopper.device, generator=rng))
        y.fill_(float("nan"))
        recorded.replay()
        torch.testing.assert_close(y, operation(operation(x).mul_(1 / 32)), rtol=0, atol=0)
        assert y.isfinite().all()


def test_streamed_weights_of_more_than_two_billion_elements(make, hopper, rng) -> None:
    n, k = (1 << 19) + 40, 4112
    operation, weight, _ = make(LinearSpec(k, n, "bfloat16"), replace(STREAMED, split_k=2))
    x = torch.randn(3, k, device=hopper.device, generator=rng).bfloat16()
    y = operation(x).float()
    for part in (slice(0, 100), slice(n - 100, n)):
        torch.testing.assert_close(y[:, part], x.float() @ weight[part].T, rtol=0.01, atol=0.2)


SHAPES = {key.split("/")[1] for path in TUNED.glob("*.json") for key in tuned.read(path)}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_what_is_shipped_for_this_gpu_is_right(hopper, rng, shape: str) -> None:
    n, k = map(int, shape.split("x"))
    spec = LinearSpec(k, n, "bfloat16")
    if not tuned.table_for(TUNED, spec, hopper):
        pytest.skip(f"needs a GPU that configurations are shipped for, this is {hopper.name}")
    operation = Linear(spec, hopper)
    weight = torch.randn(n, k, device=hopper.device, generator=rng).bfloat16()
    operation.load({"weight": [weight]})
    for rows in BUCKETS:
        x = torch.randn(rows, k, device=hopper.device, generator=rng).bfloat16()
        expected = x.float() @ weight.float().T
        error = (operation(x).float() - expected).norm() / expected.norm()
        assert error < 4e-3, rows
