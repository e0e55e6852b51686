"""Products by a chosen algorithm of cuBLASLt.

Without a GPU a stand-in takes the library's calls and computes what they describe, so that wrong
operands, shapes or strides give wrong numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import device_facts
from torch import Tensor

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec
from hotshoe_cuda import cublaslt, linear
from hotshoe_cuda.linear import MANY, MANY_FROM, Linear
from hotshoe_triton import tuned
from hotshoe_triton.tuning import LinearConfig

N, K = 48, 64
SPEC = LinearSpec(K, N, "bfloat16")


class StandIn:
    """cuBLASLt as far as it is called, over the host's memory.

    Args:
        tiles: What it offers, best first.
        status: What products end with.
    """

    def __init__(self, tiles: list[int], status: int = 0) -> None:
        self._tiles, self._status = tiles, status
        self._made: dict[int, Any] = {}
        self.used: list[int] = []

    def _make(self, out: Any, *what: Any) -> int:
        number = 1 + max(self._made, default=0)
        self._made[number] = what
        out._obj.value = number
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        assert name.endswith("Create")
        return self._make

    def cublasLtMatmulDescSetAttribute(self, made, name, value, size) -> int:
        self._made[made.value] += (name, value._obj.value)
        return 0

    def cublasLtMatrixLayoutDestroy(self, made) -> int:
        del self._made[made.value]
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments) -> int:
        ranked, count = arguments[-2:]
        count._obj.value = len(self._tiles)
        for number, tile in enumerate(self._tiles):
            ranked[number].algorithm[0] = tile
        return 0 if self._tiles else 15

    def cublasLtMatmulAlgoConfigGetAttribute(self, algorithm, name, out, size, written) -> int:
        assert name == 1
        out._obj.value = algorithm[0]
        return 0

    def cublasLtMatmul(self, handle, operation, one, w, w_of, x, x_of, zero, *rest) -> int:
        y, y_of, out, out_of, algorithm, *workspace, _ = rest
        assert (one._obj.value, zero._obj.value) == (1, 0) and workspace == [None, 0]
        assert (y, y_of) == (out, out_of)
        assert self._made[operation.value] == (68, 0, 3, 1), "the first operand is transposed"
        if self._status:
            return self._status
        self.used.append(algorithm[0])
        by_columns = [self._view(*pair) for pair in ((w, w_of), (x, x_of), (out, out_of))]
        weight, rows, result = by_columns
        result.copy_(weight.T.float() @ rows.float())
        return 0

    def _view(self, at: int, layout: Any) -> Tensor:
        kind, num_rows, num_columns, stride = self._made[layout.value]
        assert kind == 14
        size = (num_columns - 1) * stride + num_rows
        memory = (ctypes.c_uint16 * size).from_address(at)
        flat = torch.frombuffer(memory, dtype=torch.bfloat16)
        return flat.as_strided((num_rows, num_columns), (1, stride))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn([24, 201, 201, 7])
    monkeypatch.setattr(cublaslt, "library", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    forget()
    yield made
    forget()


def forget() -> None:
    for kept in (cublaslt._handle, cublaslt._operation, cublaslt.product):
        kept.cache_clear()


@pytest.fixture
def facts() -> DeviceFacts:
    return device_facts("sm_90", units=132)


def loaded(facts: DeviceFacts, table: dict | None = None, spec: LinearSpec = SPEC) -> Linear:
    op = Linear(spec, facts, table)
    weight = torch.randn(N, K, device=facts.device)
    bias = {"bias": [torch.randn(N, device=facts.device)]} if spec.bias else {}
    op.load({"weight": [weight]} | bias)
    return op


def test_tiles_come_once_each_and_best_first(stand_in: StandIn) -> None:
    assert cublaslt.tiles(N, K, torch.bfloat16) == [24, 201, 7]


@pytest.mark.parametrize("stride", [K, K + 8])
def test_operands(stand_in: StandIn, stride: int) -> None:
    x = torch.randn(5, stride).bfloat16()[:, :K]
    weight = torch.randn(N, K).bfloat16()
    y = torch.full((5, N), torch.nan, dtype=torch.bfloat16)
    product = cublaslt.product(N, K, torch.bfloat16, 201)
    before = len(stand_in._made)
    product(y, x, weight)
    torch.testing.assert_close(y.float(), x.float() @ weight.float().T, rtol=0.01, atol=0.1)
    assert stand_in.used == [201]
    assert len(stand_in._made) == before, "what is made for a call is destroyed"


def test_a_failure_is_an_error(stand_in: StandIn) -> None:
    stand_in._status = 13
    product = cublaslt.product(N, K, torch.bfloat16, 7)
    x, weight = torch.zeros(1, K).bfloat16(), torch.zeros(N, K).bfloat16()
    with pytest.raises(EngineError, match="cublasLtMatmul failed with status 13"):
        product(torch.zeros(1, N).bfloat16(), x, weight)


@pytest.mark.parametrize("offered", [[], [24]])
def test_a_tile_that_is_not_offered_leaves_the_choice(stand_in: StandIn, offered, caplog) -> None:
    stand_in._tiles = offered
    assert cublaslt.product(N, K, torch.bfloat16, 201) is None
    assert cublaslt.product(N, K, torch.bfloat16, 201) is None
    assert caplog.text.count("48x64: this cuBLASLt offers no tile 201; cuBLAS chooses") == 1


def test_without_the_library_the_choice_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise OSError("libcublasLt.so.13: cannot open shared object file")

    monkeypatch.setattr(cublaslt, "library", absent)
    forget()
    assert cublaslt.product(N, K, torch.bfloat16, 201) is None
    forget()


def test_many_rows_alone_take_a_tuned_algorithm(stand_in: StandIn, facts: DeviceFacts) -> None:
    op = loaded(facts, {(N, K, MANY): LinearConfig("cublaslt", tile=7)})
    x = torch.randn(MANY_FROM, K + 1, device=facts.device).bfloat16()
    for rows in (x[:, :K], x[:-1, :K].contiguous()):
        op(rows)
    assert stand_in.used == [], "rows that begin anywhere, and few rows"
    rows = x[:, :K].contiguous()
    torch.testing.assert_close(
        op(rows).float(), rows.float() @ op._weight.float().T, rtol=0.01, atol=0.1
    )
    assert stand_in.used == [7]


@pytest.mark.parametrize(
    "spec",
    [
        LinearSpec(K, N, "bfloat16", bias=True),
        LinearSpec(K, N, "float32"),
        LinearSpec(K, N, "bfloat16", out_dtype="float32"),
    ],
    ids=["bias", "float32", "wide"],
)
def test_products_whose_algorithms_are_not_known(stand_in: StandIn, facts, spec) -> None:
    assert list(Linear.configs(MANY, spec, facts)) == []
    op = loaded(facts, {(N, K, MANY): LinearConfig("cublaslt", tile=7)}, spec)
    assert op._product is None


def test_a_tuner_tries_every_tile(stand_in: StandIn, facts: DeviceFacts) -> None:
    tried = list(Linear.configs(MANY, SPEC, facts))
    assert tried == [LinearConfig("cublaslt", tile=tile) for tile in (24, 201, 7)]
    assert tuned.config_of(asdict(tried[0]) | {"us": 1.0}) == tried[0]
    op = loaded(facts)
    assert op._product is None
    op.configure(MANY, tried[1])
    assert op._product is not None


def test_every_tile_computes_the_same_on_a_gpu(gpu: str) -> None:
    n, k = 768, 512
    weight = torch.randn(n, k, device="cuda").bfloat16()
    offered = cublaslt.tiles(n, k, torch.bfloat16)
    assert offered
    for rows in (MANY_FROM, MANY_FROM + 77, linear.MANY):
        x = torch.randn(rows, k + 64, device="cuda").bfloat16()[:, :k]
        expected = x.double() @ weight.double().T
        for tile in offered:
            y = torch.full((rows, n), torch.nan, device="cuda", dtype=torch.bfloat16)
            product = cublaslt.product(n, k, torch.bfloat16, tile)
            assert product is not None
            product(y, x, weight)
            assert (y.double() - expected).norm() / expected.norm() < 4e-3
