"""The choice of experts against plain loops in float64."""

import math

import pytest
import torch

from hotshoe.slots import RouterSpec
from hotshoe.slots.reference.router import route

TOP2 = RouterSpec("sigmoid", True, 2.5, True, groups=4, groups_kept=2, group_score="top2")
ROUTERS = [
    RouterSpec(),
    RouterSpec(renormalize=True, scale=0.5),
    RouterSpec(correction=True, renormalize=True),
    RouterSpec("sigmoid", correction=True),
    TOP2,
    RouterSpec(groups=4, groups_kept=1),
    RouterSpec("sparsemixer", jitter=0.2),
    RouterSpec("sqrtsoftplus", True, 1.5, True),
]


def by_hand(logits: list[float], correction: list[float], top_k: int, router: RouterSpec):
    """Return {expert: weight} of one token."""
    if router.scoring == "sparsemixer":
        return mixed(logits, top_k, router.jitter)
    if router.scoring == "sigmoid":
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    elif router.scoring == "sqrtsoftplus":
        scores = [math.sqrt(math.log1p(math.exp(logit))) for logit in logits]
    else:
        whole = sum(math.exp(logit) for logit in logits)
        scores = [math.exp(logit) / whole for logit in logits]
    wanted = [s + c for s, c in zip(scores, correction, strict=True)]
    size = len(logits) // router.groups
    members = [range(g * size, (g + 1) * size) for g in range(router.groups)]
    best = 1 if router.group_score == "max" else 2
    value = {g: sum(sorted(wanted[i] for i in m)[-best:]) for g, m in enumerate(members)}
    kept = sorted(value, key=lambda g: -value[g])[: router.groups_kept]
    eligible = [i for g in kept for i in members[g]]
    chosen = sorted(eligible, key=lambda i: -wanted[i])[:top_k]
    total = sum(scores[i] for i in chosen) if router.renormalize else 1.0
    return {i: router.scale * scores[i] / total for i in chosen}


def mixed(logits: list[float], top_k: int, jitter: float):
    left, found = dict(enumerate(logits)), {}
    for _ in range(top_k):
        best = max(left, key=lambda i: left[i])
        most = left[best]
        near = [v for v in left.values() if (most - v) / max(abs(v), most) <= 2 * jitter]
        found[best] = math.exp(most) / sum(math.exp(v) for v in near)
        del left[best]
    return found


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_every_router_is_as_by_hand(router: RouterSpec) -> None:
    logits = torch.randn(50, 8)
    correction = torch.randn(8) * 0.3 if router.correction else None
    weights, ids = route(logits, correction, 2, router)
    assert weights.dtype == torch.float32 and ids.shape == weights.shape == (50, 2)
    added = [0.0] * 8 if correction is None else correction.tolist()
    for row, chosen, shares in zip(logits.tolist(), ids.tolist(), weights.tolist(), strict=True):
        expected = by_hand(row, added, 2, router)
        assert set(chosen) == set(expected)
        for i, share in zip(chosen, shares, strict=True):
            assert share == pytest.approx(expected[i], rel=1e-4)


def test_a_token_whose_logits_hold_nan_has_nan_weights_alone() -> None:
    for router in ROUTERS:
        logits = torch.randn(3, 8)
        logits[1, 5] = torch.nan
        correction = torch.zeros(8) if router.correction else None
        weights, ids = route(logits, correction, 2, router)
        assert weights[1].isnan().any() and weights[[0, 2]].isfinite().all()
        assert (ids >= 0).all() and (ids < 8).all()


def test_scores_that_are_all_zero_give_no_nan() -> None:
    router = RouterSpec("sigmoid", renormalize=True)
    weights, _ = route(torch.full((1, 4), -200.0), None, 2, router)
    assert torch.equal(weights, torch.zeros(1, 2))
