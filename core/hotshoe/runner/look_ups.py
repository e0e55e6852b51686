"""Has a proposer look drafts up on the device, behind each step, in all tokens of its rows.

See `hotshoe.speculation.DeviceProposer`. The host would search one row after the other, while the
device waits for it. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotshoe.runner.ahead import MadeDrafts, Samples, samples_of
from hotshoe.runner.limits import Search
from hotshoe.runner.rows import StepInputs
from hotshoe.sampling.rows import place
from hotshoe.types import StepPlan

#: Tokens of several rows that are searched at once: a search takes memory for each.
MOST_TOKENS = 1 << 20


class LookUps:
    """One proposer behind one runner.

    Args:
        search: What finds drafts.
        tokens: [rows, width] int32, all tokens known of each row.
    """

    def __init__(self, search: Search, tokens: Tensor) -> None:
        self._search, self._tokens, self._num = search, tokens, 0
        self._drafts: dict[int, Sequence[int]] = {}

    def begin(self, plan: StepPlan) -> None:
        """Learn which drafts a step verifies, and how many the next one shall have."""
        self._num = plan.num_ahead
        self._drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))

    def __call__(self, inputs: StepInputs, sampled: Tensor) -> MadeDrafts | None:
        """Search where the model has sampled, if anybody wants drafts.

        Args:
            inputs: The step.
            sampled: [s] its tokens, which stand in the table.
        """
        if not self._num or not len(inputs.sample_rows):
            return None
        samples, device = samples_of(inputs), self._tokens.device
        rows = place(samples.rows.astype(np.int64), device)
        lengths = place(samples.positions + 2, device)
        if self._drafts:
            lengths += self._num_accepted(samples, sampled)
        made = self._found(rows, lengths, int(inputs.seq_lens.max()) + 1)
        return MadeDrafts(samples.rows.tolist(), made)

    def warm_up(self) -> None:
        """Search as many tokens as are ever searched at once."""
        rows, width = self._tokens.shape
        most = torch.arange(min(rows, self._piece(width)), device=self._tokens.device)
        self._search(self._tokens[most], torch.full_like(most, width), 1)

    def _num_accepted(self, samples: Samples, sampled: Tensor) -> Tensor:
        """Return how many drafts of each row are right, [r] int64."""
        drafts = np.full(samples.at.shape, -1)
        for i, row in enumerate(samples.rows.tolist()):
            own = self._drafts.get(row, ())
            drafts[i, : len(own)] = own
        agreed = sampled[place(samples.at, sampled.device)] == place(drafts, sampled.device)
        return agreed.long().cumprod(1).sum(1)

    def _found(self, rows: Tensor, lengths: Tensor, longest: int) -> Tensor:
        tokens, size = self._tokens[:, :longest], self._piece(longest)
        pieces = zip(torch.split(rows, size), torch.split(lengths, size), strict=True)
        return torch.cat([self._search(tokens[own], ends, self._num) for own, ends in pieces])

    def _piece(self, width: int) -> int:
        """Return how many rows of so many tokens are searched at once."""
        return max(MOST_TOKENS // width, 1)
