"""Log probabilities of prompt tokens: which of them a step predicts, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hotshoe.runner.rows import Ints, StepInputs
from hotshoe.sampling import LogprobTensors, compute_logprobs

#: Prompt positions whose logits are held at once; a prompt has many, and a vocabulary is large.
MAX_POSITIONS = 128


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens of a row that a step predicts.

    Attributes:
        first: Place in the step of the token before the first of them.
        position: That token's position.
        count: How many there are.
        width: How many of the most likely tokens to report with each.
    """

    row: int
    first: int
    position: int
    count: int
    width: int


def prompt_spans(inputs: StepInputs, widths: Ints, num_prompt: Ints) -> list[PromptSpan]:
    """Return the prompt tokens of a step that are reported.

    Args:
        inputs: The step.
        widths: Of every row, as `PromptSpan.width`; -1 reports nothing.
        num_prompt: Tokens of every row's prompt.
    """
    wanted = widths[inputs.rows] >= 0
    if not wanted.any():
        return []
    counts = np.diff(inputs.query_start_loc)
    starts = inputs.seq_lens - counts
    counted = np.minimum(counts, num_prompt[inputs.rows] - 1 - starts)
    found = []
    for i in np.flatnonzero(wanted & (counted > 0)).tolist():
        row, first = int(inputs.rows[i]), int(inputs.query_start_loc[i])
        found.append(PromptSpan(row, first, int(starts[i]), int(counted[i]), int(widths[row])))
    return found


def prompt_logprobs(
    spans: Sequence[PromptSpan],
    hidden: Tensor,
    logits_of: Callable[[Tensor, int], Tensor],
    tokens: Tensor,
) -> list[tuple[int, LogprobTensors, int]]:
    """Compute log probabilities of prompt tokens, as `RunningStep.prompts` holds them.

    Args:
        spans: From `prompt_spans`.
        hidden: [num_tokens, hidden_size] of the whole step.
        logits_of: Maps hidden states [n, hidden_size] of a row to logits.
        tokens: [rows, max_model_len + 1], all tokens known of each row.
    """
    found = []
    for span in spans:
        for done in range(0, span.count, MAX_POSITIONS):
            end = min(done + MAX_POSITIONS, span.count)
            logits = logits_of(hidden[span.first + done : span.first + end], span.row)
            targets = tokens[span.row, span.position + done + 1 : span.position + end + 1].long()
            found.append((span.row, compute_logprobs(logits, targets, span.width), span.width))
    return found
