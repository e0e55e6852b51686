"""Method `ngram_device`: the look-ups of `ngram`, of all sequences at once, on the device.

The host looks up one sequence after the other, and the device waits for it. Here the look-ups
follow the step on the device, and the drafts come with its tokens. They are those of `ngram`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hotshoe_speculation.ngram import lengths_of

#: In the place of a token that is none.
NOTHING = -1


class DeviceNgramProposer:
    """See `hotshoe.speculation.DeviceProposer`.

    Args:
        options: Those of `NgramProposer`.

    Raises:
        ConfigError: As there.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._shortest, self._longest = lengths_of("ngram_device", options)

    def search(self, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
        """Return the tokens that followed the longest known end of each sequence last.

        Where the sequence itself ends sooner, they go on with those just proposed, as a repetition
        does whose period is shorter than the limit.

        Args:
            tokens: [n, width] int32, those of each sequence; behind them anything.
            lengths: [n] int64, how many it has.
            limit: Tokens to return.

        Returns:
            [n, limit] int32; -1 where not even the shortest end occurs earlier.
        """
        last = (lengths - 1)[:, None]
        length, at = self._ends(tokens, last)
        # Another place may win where nothing is found.
        period = (last - at).clamp(min=1)
        places = at + 1 + torch.arange(limit, device=tokens.device) % period
        found = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1))
        return found.where(length >= self._shortest, NOTHING)

    def _ends(self, tokens: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Find the longest end that occurs earlier, and of its occurrences the last.

        Args:
            tokens: [n, width].
            last: [n, 1] the place of each sequence's last token.

        Returns:
            [n, 1] each: its length, and the place of the occurrence's last token.
        """
        width = tokens.shape[1]
        places = torch.arange(width, dtype=torch.int32, device=tokens.device)
        agrees = places < last
        lengths = torch.zeros_like(tokens)
        for back in range(min(self._longest, width)):
            own = tokens.gather(1, (last - back).clamp(min=0))
            agrees &= pad(tokens[:, : width - back], (back, 0), value=NOTHING) == own
            lengths += agrees
        # 32 bits are enough: ends have at most 64 tokens, and no sequence has 2**25.
        at = (lengths * width + places).argmax(1, keepdim=True)
        return lengths.gather(1, at), at
