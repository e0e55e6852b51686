"""Which calls of a model's code wait for the device."""

from collections.abc import Callable

import pytest
import torch

from hotshoe_models.hf import build
from hotshoe_models.hf.waits import watch_waits

X = torch.arange(6.0)
WAITING = [
    X.tolist,
    X.cpu,
    lambda: X.sum().item(),
    lambda: bool(X[0] > 1),
    lambda: list(range(X[2].int())),
    lambda: X[X.argmax() :],
    X.nonzero,
    lambda: torch.where(X > 2),
    lambda: X[X > 2],
    lambda: X.clone().masked_fill_(X > 2, 0)[X > 2],
    lambda: X.clone().__setitem__(X > 2, X[3:]),
    lambda: X.repeat_interleave(torch.ones(6, dtype=torch.int64)),
]
PATIENT = [
    lambda: X[X.argsort()],
    lambda: X[1:4] @ X[:3],
    lambda: torch.where(X > 2, X, 0.0),
    lambda: X.clone().index_add_(0, X.long(), X),
    lambda: X.masked_fill(X > 2, 0.0),
    lambda: X.to(torch.float64).topk(2),
]


@pytest.mark.parametrize("call", WAITING)
def test_calls_that_read_numbers_are_found(call: Callable[[], object]) -> None:
    with watch_waits() as found:
        call()
    assert found


@pytest.mark.parametrize("call", PATIENT)
def test_other_calls_are_not(call: Callable[[], object]) -> None:
    with watch_waits() as found:
        call()
    assert not found


def test_a_builder_is_told_of_the_first_place(described, context) -> None:
    ctx = context()
    sizes = {"kv_channels": 8, "num_local_experts": 3, "num_experts_per_tok": 2}
    build(described("JetMoeForCausalLM", **sizes), ctx)
    [said] = ctx.waits
    assert said.startswith("transformers' code of JetMoeForCausalLM (modeling_jetmoe.py:")


def test_usual_models_wait_for_nothing(described, context) -> None:
    for kind in ("LlamaForCausalLM", "OlmoeForCausalLM"):
        ctx = context()
        build(described(kind), ctx)
        assert ctx.waits == []
