"""The reference of adapters: each token's own, token by token in float64."""

import pytest
import torch

from hotshoe.slots import LoraSpec
from hotshoe.slots.reference.lora import build, tokens_of


@pytest.mark.parametrize("places", [[0, 0, 0], [-1, 2, 1, 2, -1], [3], [-1, -1], []])
def test_each_token_has_its_own_adapter(places: list[int]) -> None:
    spec = LoraSpec(10, 7, 3, 4, "float32")
    x, y = torch.randn(len(places), 10), torch.randn(len(places), 7)
    a, b = torch.randn(4, 3, 10), torch.randn(4, 3, 7)
    wanted = y.double()
    for row, place in enumerate(places):
        if place >= 0:
            wanted[row] += b[place].double().T @ (a[place].double() @ x[row].double())
    tokens = tokens_of(torch.tensor(places, dtype=torch.int32), 4, "cpu")
    build(spec, None)(y, x, a, b, tokens)
    torch.testing.assert_close(y, wanted.float(), rtol=1e-5, atol=1e-5)


def test_what_other_adapters_hold_does_not_spoil_a_token() -> None:
    spec = LoraSpec(4, 5, 2, 3, "float32")
    a, b = torch.randn(3, 2, 4), torch.randn(3, 2, 5)
    a[0] = torch.inf
    y = torch.zeros(2, 5)
    tokens = tokens_of(torch.tensor([1, 2], dtype=torch.int32), 3, "cpu")
    build(spec, None)(y, torch.randn(2, 4), a, b, tokens)
    assert y.isfinite().all()


def test_tokens_are_ordered_by_place() -> None:
    places = torch.tensor([2, -1, 0, 2, -1, 0, 0], dtype=torch.int32)
    tokens = tokens_of(places, 3, "cpu")
    assert tokens.order.tolist() == [2, 5, 6, 0, 3, 1, 4]
    assert tokens.starts.tolist() == [0, 3, 3, 5]
    assert tokens.used == [0, 2]
    assert {t.dtype for t in (tokens.places, tokens.order, tokens.starts)} == {torch.int32}
