"""Which products the tuned kernels compute, and which the library."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from hotshoe.slots import LinearSpec
from hotshoe_triton import library, tuned
from hotshoe_triton.tuning import LIBRARY, LinearConfig

N, K = 48, 64


@pytest.fixture
def make(facts, tmp_path: Path):
    """Return a function that builds a loaded product, with its weight."""

    class Linear(library.Linear):
        folder = tmp_path

    def make(spec: LinearSpec) -> tuple[library.Linear, torch.Tensor, torch.Tensor | None]:
        op = Linear(spec, facts)
        weight = torch.randn(N, K, device=facts.device).bfloat16()
        bias = torch.randn(N, device=facts.device).bfloat16() if spec.bias else None
        op.load({"weight": [weight]} | ({"bias": [bias]} if bias is not None else {}))
        return op, weight, bias

    return make


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 64, 65, 100])
def test_products_of_any_number_of_rows(make, facts, rows: int, bias: bool) -> None:
    op, weight, offset = make(LinearSpec(K, N, "bfloat16", bias))
    x = torch.randn(rows, K, device=facts.device).bfloat16()
    expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    assert (op(x).double() - expected).norm() / expected.norm() < 4e-3


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None,
    reason="needs an NVIDIA GPU: of the libraries, cuBLAS alone does this",
)
def test_wide_results(make, facts) -> None:
    op, weight, _ = make(LinearSpec(K, N, "bfloat16", out_dtype="float32"))
    x = torch.randn(100, K, device=facts.device).bfloat16()
    expected = x.double() @ weight.double().T
    assert (op(x).double() - expected).norm() / expected.norm() < 1e-5


def test_a_tuned_table_decides(make, facts, tmp_path: Path, monkeypatch) -> None:
    spec = LinearSpec(K, N, "bfloat16")
    entry = asdict(LIBRARY) | {"us": 1.0}
    tuned.path_of(tmp_path, facts).write_text(json.dumps({tuned.key_of(spec, 4): entry}))
    calls = []
    many = library.Linear._many
    monkeypatch.setattr(
        library.Linear, "_many", lambda self, *a: calls.append(len(a[1])) or many(self, *a)
    )
    op, _, _ = make(spec)
    for rows in (2, 3, 4, 5):
        op(torch.randn(rows, K, device=facts.device).bfloat16())
    assert calls == [3, 4], "buckets hold the rows up to their own number"
    op.configure(4, LinearConfig("skinny", 16, 32, 1, 4, 2))
    op(torch.randn(4, K, device=facts.device).bfloat16())
    assert calls == [3, 4]
