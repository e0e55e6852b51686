"""Log probabilities of prompt tokens: which of them a step predicts, and what they are."""

import numpy as np
import torch

from hotshoe.runner import prompt_logprobs as module
from hotshoe.runner.prompt_logprobs import PromptSpan, prompt_logprobs, prompt_spans
from hotshoe.runner.rows import Rows
from hotshoe.types import NewRow, SamplingParams, StepPlan


def test_prompt_tokens_behind_the_steps_own_are_predicted(monkeypatch) -> None:
    rows = Rows(4, 32, 4)
    done, ids, blocks = (0, 4, 8), list(range(9)), [[0, 1, 2]]
    news = [NewRow(r, ids, 9, n, blocks, SamplingParams(), 0) for r, n in enumerate(done)]
    inputs = rows.advance(StepPlan(0, news, [1, 0, 2], [5, 3, 1]))
    widths = np.array([2, 0, 5, -1], np.int32)
    found = prompt_spans(inputs, widths, rows.num_prompt)
    assert found == [PromptSpan(1, 0, 4, 4, 0), PromptSpan(0, 5, 0, 3, 2)]
    assert prompt_spans(inputs, np.full(4, -1, np.int32), rows.num_prompt) == []
    monkeypatch.setattr(module, "MAX_POSITIONS", 3)
    logits = torch.randn(9, 12, dtype=torch.float64)
    tokens = torch.arange(9).repeat(4, 1)
    asked = []

    def logits_of(hidden: torch.Tensor, row: int) -> torch.Tensor:
        asked.append(row)
        return hidden.clone()

    parts = prompt_logprobs(found, logits.float(), logits_of, tokens)
    assert asked == [1, 1, 0]
    assert [(row, len(tensors.ranks), width) for row, tensors, width in parts] == [
        (1, 3, 0),
        (1, 1, 0),
        (0, 3, 2),
    ]
    likely = logits.log_softmax(1)
    entries = parts[2][1].to_host([2] * 3)
    for place, entry in enumerate(entries):
        expected = float(likely[5 + place, place + 1])
        told = dict(zip(entry.token_ids, entry.logprobs, strict=True))
        assert abs(told[place + 1] - expected) < 1e-5
