"""The choice of experts, in float32: part of the reference of slot `moe`.

Nothing here waits for the device. Candidates whose kernels begin after the choice may use it.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.slots.mixture import Placement
from hotshoe.slots.specs import RouterSpec

#: Added to sums that weights are divided by, as DeepSeek-V3 does: all scores may be 0.
TINY = 1e-20
#: Scores of logits [num_tokens, num_experts], of routers that score each expert once.
SCORES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: functional.softplus(logits).sqrt(),
}


def route(
    logits: Tensor, correction: Tensor | None, top_k: int, router: RouterSpec
) -> tuple[Tensor, Tensor]:
    """Choose experts for every token.

    Args:
        logits: [num_tokens, num_experts] float32.
        correction: [num_experts] float32, or None.
        top_k: Experts for each token.
        router: How to choose.

    Returns:
        weights [num_tokens, top_k] float32 and ids [num_tokens, top_k] int64. The weights of a
        token whose logits hold NaN are NaN.
    """
    if router.scoring == "sparsemixer":
        weights, ids = _sparsemixer(logits, top_k, router.jitter)
    else:
        scores = SCORES[router.scoring](logits)
        wanted = scores if correction is None else scores + correction
        if router.groups > 1:
            wanted = _of_best_groups(wanted, router)
        ids = wanted.topk(top_k, -1).indices
        weights = scores.gather(1, ids)
    if router.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return weights * router.scale, ids


def placed(ids: Tensor, placement: Placement) -> Tensor:
    """Return where chosen experts are, and count them.

    Args:
        ids: [num_tokens, top_k] int64, experts of the model.
        placement: Where they are.

    Returns:
        [num_tokens, top_k] int32; see `Placement.table`.
    """
    if placement.counts is not None:
        one = placement.counts.new_ones(1).expand(ids.numel())
        placement.counts.index_add_(0, ids.flatten(), one)
    turns = torch.arange(len(ids), device=ids.device) % len(placement.table)
    return placement.table[turns[:, None], ids]


def _of_best_groups(wanted: Tensor, router: RouterSpec) -> Tensor:
    """Return scores [num_tokens, num_experts] with those of the other groups as -inf."""
    groups = wanted.view(len(wanted), router.groups, wanted.shape[1] // router.groups)
    counted = 1 if router.group_score == "max" else 2
    best = groups.topk(counted, -1).values.sum(-1).topk(router.groups_kept, -1).indices
    others = torch.ones_like(groups[:, :, 0], dtype=torch.bool).scatter_(1, best, False)
    return groups.masked_fill(others[:, :, None], -torch.inf).flatten(1)


def _sparsemixer(logits: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """Take the largest logit again and again; each counts among what lies near to it."""
    left, weights, ids = logits, [], []
    for _ in range(top_k):
        largest, chosen = left.max(-1, keepdim=True)
        distance = (largest - logits) / torch.maximum(logits.abs(), largest)
        near = left.masked_fill(distance > 2 * jitter, -torch.inf)
        weights.append(near.softmax(-1).gather(1, chosen))
        ids.append(chosen)
        left = left.scatter(1, chosen, -torch.inf)
    return torch.cat(weights, 1), torch.cat(ids, 1)
