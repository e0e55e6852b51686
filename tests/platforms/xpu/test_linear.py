"""Products through PyTorch; here on the host."""

import pytest
import torch
from tests.platforms.xpu.conftest import on_host

from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_xpu.linear import Linear, supports


@pytest.mark.parametrize("rows", [0, 1, 33])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out_dtype", [None, "float32"])
def test_products(rows: int, bias: bool, out_dtype: str | None) -> None:
    spec = LinearSpec(64, 40, "bfloat16", bias, out_dtype=out_dtype)
    op = Linear(spec, on_host())
    weight, x = torch.randn(40, 64).bfloat16(), torch.randn(rows, 80).bfloat16()[:, :64]
    offset = torch.randn(40).bfloat16()
    op.load({"weight": [weight[:8], weight[8:]]} | ({"bias": [offset]} if bias else {}))
    expected = x.double() @ weight.double().T + (offset.double() if bias else 0)
    found = op(x)
    assert found.dtype == (torch.float32 if out_dtype else torch.bfloat16)
    torch.testing.assert_close(found.double(), expected, rtol=8e-3, atol=2e-2)
    assert op.nbytes() == (40 * 64 + 40 * bias) * 2


def test_refusals() -> None:
    quantized = LinearSpec(64, 40, "bfloat16", weight=QuantSpec("int8", "channel"))
    assert "not plain" in supports(quantized, on_host()).reason
    assert "float64" in supports(LinearSpec(64, 40, "float64"), on_host()).reason
    assert supports(LinearSpec(64, 40, "bfloat16", out_dtype="float32"), on_host()).score == 60
