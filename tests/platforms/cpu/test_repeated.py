"""Calls of PyTorch that a recorded step repeats."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hotshoe_cpu import repeated


class Seen(TorchFunctionMode):
    """Keeps the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **kwargs or {})


def change(x: Tensor) -> Tensor:
    x[:, torch.tensor([2, 0])] = x[:, :2].clone()
    return x.clamp_(max=0.5)


@torch.inference_mode()
@pytest.mark.parametrize(
    "step",
    [
        lambda x: x + x.T.reshape(4, 4),
        lambda x: torch.cat([x, x[:, :2]], dim=1),
        lambda x: x.topk(2, dim=1),
        lambda x: x[torch.tensor([3, 1])],
        lambda x: x.cumsum(1),
        lambda x: x.type(torch.bfloat16),
        lambda x: x.sign() * x.abs(),
        lambda x: (x != 0).all(1),
        lambda x: x.int() ^ (x.int() % 3),
        lambda x: torch.nn.functional.rms_norm(x, (4,), None, 1e-6).to(torch.bfloat16),
        change,
    ],
)
def test_a_repetition_leaves_what_the_call_gave(step: Callable[[Tensor], Any]) -> None:
    x, seen = torch.randn(4, 4), Seen()
    first = x.clone()
    with seen:
        found = step(x)
    func, args, kwargs = seen.calls[-1]
    assert repeated.known(func, args, kwargs)
    wanted = [y.clone() for y in repeated.tensors(found)]
    changes = func in repeated.CHANGES
    repeat = repeated.repetition(func, None if changes else found, args, kwargs)
    for y in repeated.tensors(found):
        y.copy_(first) if changes else y.zero_()
    repeat()
    if not changes:
        assert all(map(torch.equal, repeated.tensors(found), wanted))
    else:
        assert torch.equal(x, first.clamp(max=0.5)), "over the numbers that are there"


@torch.inference_mode()
@pytest.mark.parametrize(
    "step",
    [
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, 1.0),
        lambda x: x.bernoulli_(),
        torch.nn.functional.dropout,
        lambda x: x.nonzero(),
        lambda x: x.tolist(),
    ],
)
def test_numbers_that_choose_shapes_or_come_from_elsewhere_are_not_known(
    step: Callable[[Tensor], Any],
) -> None:
    seen = Seen()
    with seen:
        step(torch.randn(4, 4))
    func, args, kwargs = seen.calls[-1]
    assert not repeated.known(func, args, kwargs)


def test_a_view_shares_its_arguments_memory() -> None:
    x = torch.randn(4, 4)
    assert repeated.shares(x.split(2), (x,)) and repeated.shares(x[:0], (x,))
    assert not repeated.shares((x, x.clone()), (x,))
    assert repeated.shares([x[0]], ([x],))


def test_dropout_without_training_is_a_view() -> None:
    x, seen = torch.randn(4, 4), Seen()
    with seen:
        found = torch.nn.Dropout(0.5).eval()(x)
    func, args, kwargs = seen.calls[-1]
    assert repeated.known(func, args, kwargs) and repeated.shares(found, args)
