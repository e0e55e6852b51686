"""Reference of slot `sample`: batched, float64 inside, thresholds instead of masks by rank.

Top-k and top-p each reduce to one threshold on the logits, so ties at a boundary are kept by
construction and only values are sorted. The oracle of every other candidate; the sort is skipped
when no row filters, everything but the argmax when all rows are greedy.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import SampleOp
from hotshoe.slots.specs import SampleSpec


def build(spec: SampleSpec, facts: DeviceFacts) -> SampleOp:
    """Build the plain sampler; the argument meanings are those of `SampleOp`."""

    def sample(
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        uniform: Tensor,
    ) -> Tensor:
        tokens = logits.argmax(dim=1)
        highest = logits.gather(1, tokens[:, None])
        random = temperature > 0
        if random.any():
            scale = torch.where(random, temperature, 1.0)[:, None].double()
            weights = _weights(logits, highest, scale)
            if ((top_k > 0) | (top_p < 1)).any():
                keep = logits >= _threshold(logits, highest, scale, top_k, top_p)
                weights = weights.where(keep, 0.0)
            weights = weights.where(weights >= min_p[:, None], 0.0)
            tokens = torch.where(random, _invert_cdf(weights, uniform), tokens)
        return tokens.where(highest[:, 0].isfinite(), -1)

    return sample


def _weights(logits: Tensor, highest: Tensor, scale: Tensor) -> Tensor:
    """Return probabilities up to a factor; the most likely token weighs 1."""
    return ((logits.double() - highest) / scale).exp()


def _threshold(
    logits: Tensor, highest: Tensor, scale: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    """Return the lowest logit [n, 1] that top-k, then top-p, keep."""
    ordered = logits.sort(dim=1, descending=True).values
    width = logits.shape[1]
    rank = torch.where((top_k > 0) & (top_k < width), top_k, width).long() - 1
    lowest = ordered.gather(1, rank[:, None])
    sums = _weights(ordered, highest, scale).where(ordered >= lowest, 0.0).cumsum(dim=1)
    short = sums < top_p.double()[:, None] * sums[:, -1:]
    last = short.sum(dim=1, keepdim=True).clamp(max=width - 1)
    nucleus = ordered.gather(1, last)
    return torch.where(top_p[:, None] < 1, torch.maximum(lowest, nucleus), lowest)


def _invert_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index whose cumulated weight exceeds uniform times the total."""
    sums = weights.cumsum(dim=1)
    total = sums[:, -1:]
    # Rounding may lift uniform * total to total itself, which no index would exceed.
    below = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(sums, below, right=True)[:, 0].clamp(max=weights.shape[1] - 1)
