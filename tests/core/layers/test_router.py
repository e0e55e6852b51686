"""Routers whose tokens have experts of their own."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import FACTS

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Mixture
from hotshoe.layers.router import Router
from hotshoe.slots import SLOTS, RouterSpec, Selector
from hotshoe.slots.reference.router import route

MIXTURE = Mixture(
    hidden_size=6,
    intermediate_size=10,
    num_experts=8,
    top_k=2,
    activation="silu",
    router=RouterSpec("sqrtsoftplus", renormalize=True),
    table_size=20,
)


def built(mixture=MIXTURE):
    ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 4, 32)
    router = Router(ctx, "", mixture)
    ctx.weights.feed("mlp.gate.weight", torch.randn(8, 6))
    return ctx, router


def test_tokens_get_their_own_experts_whatever_the_logits() -> None:
    ctx, router = built()
    table = torch.rand(20, 8).argsort(1)[:, :2]
    ctx.weights.feed("mlp.gate.tid2eid", table)
    x, ids = torch.randn(50, 6), torch.randint(20, (50,))
    logits, correction = router(x, ids)
    assert correction is None
    weights, chosen = route(logits, correction, 2, MIXTURE.router)
    assert torch.equal(chosen.sort(1).values, table[ids].sort(1).values)
    scores = torch.nn.functional.softplus(x @ router._scores._linear._op.state()["weight"].T).sqrt()
    own = scores.gather(1, chosen)
    torch.testing.assert_close(weights, own / own.sum(1, keepdim=True))
    ctx.weights.feed("mlp.gate.tid2eid", table.flip(0))
    assert torch.equal(router.state()["table"], table.flip(0))


@pytest.mark.parametrize(
    ("table", "message"),
    [([[1, 1]], "an expert twice"), ([[1, 8]], "others than the 8"), ([[-1, 2]], "others than")],
)
def test_bad_tables_are_refused(table, message) -> None:
    ctx, _ = built()
    with pytest.raises(CheckpointError, match=f"mlp.gate.tid2eid names {message}"):
        ctx.weights.feed("mlp.gate.tid2eid", torch.tensor(table).expand(20, 2))


def test_without_a_table_ids_say_nothing() -> None:
    _, router = built(replace(MIXTURE, table_size=0))
    x = torch.randn(5, 6)
    logits, _ = router(x, None)
    assert logits.isfinite().all()


def test_a_correction_of_logits_chooses_and_weighs_nothing() -> None:
    sigmoid = RouterSpec("sigmoid", renormalize=True)
    ctx, router = built(replace(MIXTURE, router=sigmoid, table_size=0, logit_correction=True))
    moved = torch.zeros(8)
    moved[[2, 5]] = 100.0
    ctx.weights.feed("mlp.gate.e_score_correction_bias", moved)
    x = torch.randn(5, 6)
    logits, correction = router(x, None)
    assert correction is None
    weights, chosen = route(logits, correction, 2, sigmoid)
    assert chosen.sort(1).values.tolist() == [[2, 5]] * 5
    scores = (x @ router._scores._linear._op.state()["weight"].T).sigmoid().gather(1, chosen)
    torch.testing.assert_close(weights, scores / scores.sum(1, keepdim=True))
