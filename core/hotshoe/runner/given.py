"""Embeddings that requests bring in place of token ids, until their prompts are computed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hotshoe.runner.rows import StepInputs
from hotshoe.types import NewRow


class GivenRows:
    """Rows of the embedding's kind by request.

    Args:
        hidden_size: Their width.
        device: Where they go.
    """

    def __init__(self, hidden_size: int, device: str) -> None:
        self._hidden_size = hidden_size
        self._device = device
        self._given: dict[int, Tensor] = {}

    def set_row(self, new: NewRow) -> None:
        """Take over what a new row brings; waits for its copy to the device."""
        self._given.pop(new.row, None)
        if new.embeds is not None:
            flat = torch.from_numpy(np.frombuffer(new.embeds, "<f4").copy())
            self._given[new.row] = flat.view(-1, self._hidden_size).to(self._device)

    def among(self, inputs: StepInputs) -> list[tuple[slice, Tensor]]:
        """Return which tokens of a step are given, and their embeddings in float32.

        A prompt's embeddings are let go of with the step that computes the last of them.
        """
        found = []
        for i, row in enumerate(inputs.rows.tolist()):
            given = self._given.get(row)
            if given is None:
                continue
            first, end = int(inputs.query_start_loc[i]), int(inputs.seq_lens[i])
            begin = end - (int(inputs.query_start_loc[i + 1]) - first)
            own = given[begin:end]
            if len(own):
                found.append((slice(first, first + len(own)), own))
            if end >= len(given):
                del self._given[row]
        return found
