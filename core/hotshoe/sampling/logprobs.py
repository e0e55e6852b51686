"""Log probabilities of the unmodified model distribution, batched, float32.

Every row is computed as wide as the widest request of the batch and trimmed per row when the
values reach the host. Used by `Sampler` for generated tokens and by the runner for prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.types import StepResult, TokenLogprobs


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log probabilities of m positions, still on the device.

    Attributes:
        token_ids: [m, 1 + k + w] int64, the chosen token, the k most likely, best first, w more.
        logprobs: [m, 1 + k + w] float32.
        ranks: [m] int64, one more than the number of likelier tokens.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The fields in order."""
        return self.token_ids, self.logprobs, self.ranks

    def to_host(self, widths: Sequence[int], counts: Sequence[int] = ()) -> list[TokenLogprobs]:
        """Fetch all positions; position i keeps widths[i] <= k likely tokens and counts[i] <= w."""
        ids, logprobs, ranks = (x.tolist() for x in (self.token_ids, self.logprobs, self.ranks))
        more = self.token_ids.shape[1] - max(counts, default=0)

        def kept(row: list[Any], place: int) -> tuple[Any, ...]:
            count = counts[place] if counts else 0
            return (*row[: 1 + widths[place]], *row[more : more + count])

        return [
            TokenLogprobs(kept(ids[i], i), kept(logprobs[i], i), ranks[i])
            for i in range(len(widths))
        ]


def compute_logprobs(
    logits: Tensor, chosen: Tensor, k: int, more: Tensor | None = None
) -> LogprobTensors:
    """Compute log probabilities.

    Args:
        logits: [m, vocab_size], raw.
        chosen: [m] int64; a negative id (no token) is read as 0.
        k: How many of the most likely tokens to report.
        more: [m, w] int64, tokens to report whether they are likely or not.
    """
    logits = logits.float()
    chosen = chosen.clamp(min=0)[:, None]
    value = logits.gather(1, chosen)
    best = logits.topk(min(k, logits.shape[1]), dim=1)
    normalizer = logits.logsumexp(dim=1, keepdim=True)
    more = chosen[:, :0] if more is None else more
    return LogprobTensors(
        torch.cat([chosen, best.indices, more], dim=1),
        torch.cat([value, best.values, logits.gather(1, more)], dim=1) - normalizer,
        (logits > value).sum(dim=1) + 1,
    )


def add_logprobs(result: StepResult, rows: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
    """Give rows the log probabilities of their tokens, as far as they have such.

    Args:
        rows: That of each entry.
    """
    tokens_of = dict(zip(result.rows, result.tokens, strict=True))
    for row, entry in zip(rows, entries, strict=True):
        reported = result.logprobs.setdefault(row, []) if row in tokens_of else None
        if reported is not None and len(reported) < len(tokens_of[row]):
            reported.append(entry)
