"""Logit stages at their edges; their arithmetic is tested through the sampler."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hotshoe.sampling.rows import RowParameters
from hotshoe.sampling.stages import Step, plan_stages
from hotshoe.types import NewRow, SamplingParams

CPU = torch.device("cpu")
VOCAB = 8


def change(rows, logits, table, bad_words=()):
    """Apply what rows {row: (num_prompt, num_tokens, params)} ask for; return the stages."""
    params = RowParameters(len(table), VOCAB)
    for row, (num_prompt, _, sampling) in rows.items():
        sampling = replace(sampling, bad_words_token_ids=bad_words)
        params.set_row(NewRow(row, [], num_prompt, 0, [], sampling, 0), (7,))
    stages = plan_stages(params, np.array(list(rows)), CPU)
    step = Step(np.array([n for _, n, _ in rows.values()]), table)
    for stage in stages:
        stage.apply(logits, step)
    return stages, step


def test_plain_rows_have_no_stages():
    assert (
        change({0: (1, 1, SamplingParams()), 2: (1, 1, SamplingParams())}, None, [0] * 3)[0] == []
    )


def test_output_penalties_without_output_change_nothing():
    table = torch.tensor([[1, 2, 3, -1], [4, 5, 6, 6]])
    sampling = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    logits = torch.ones(2, VOCAB)
    change({0: (3, 3, sampling), 1: (1, 4, sampling)}, logits, table)
    expected = torch.ones(2, VOCAB)
    expected[1, 5], expected[1, 6] = 1 - 1.0 - 0.5, 1 - 1.0 - 1.0
    assert torch.equal(logits, expected)
    alone = torch.ones(1, VOCAB)
    change({0: (3, 3, sampling)}, alone, table)
    assert torch.equal(alone, torch.ones(1, VOCAB))


def test_bad_words_longer_than_the_row_never_match():
    logits = torch.ones(1, VOCAB)
    change({0: (1, 1, SamplingParams())}, logits, torch.tensor([[1, 1, 1]]), [(1, 1, 5), (1, 6)])
    assert logits[0].isinf().nonzero().flatten().tolist() == [6]


@pytest.mark.parametrize("garbage", [-1, 2**31 - 1])
def test_table_entries_beyond_the_known_tokens_are_never_used(garbage):
    table = torch.full((2, 50), garbage, dtype=torch.int32)
    table[0, :2], table[1, :40] = torch.tensor([1, 2]), 3
    sampling = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)
    logits = torch.ones(2, VOCAB)
    change(
        {0: (1, 2, sampling), 1: (40, 40, sampling)}, logits, table, [(1, 2, 5), (2, 6), (0, 1, 4)]
    )
    expected = torch.ones(2, VOCAB)
    expected[0, 1], expected[0, 2], expected[1, 3] = 0.5, 0.5 - 2, 0.5
    expected[0, 5], expected[0, 6] = -math.inf, -math.inf
    assert torch.equal(logits, expected)


def test_counts_of_long_outputs_are_exact_enough():
    table = torch.full((1, 5001), 3)
    logits = torch.full((1, VOCAB), 10.0)
    change({0: (1, 5001, SamplingParams(frequency_penalty=0.1))}, logits, table)
    assert logits[0, 3].item() == pytest.approx(10 - 500, rel=1e-3)
    assert logits[0, :3].tolist() == [10.0] * 3


def test_infinite_logits_stay_as_they_are():
    table = torch.tensor([[0, 1, 1]])
    logits = torch.tensor([[-math.inf, -math.inf, 1.0, 1, 1, 1, 1, 1]])
    sampling = SamplingParams(
        repetition_penalty=0.5, presence_penalty=-1.0, frequency_penalty=-1.0, logit_bias={0: 9.0}
    )
    change({0: (1, 3, sampling)}, logits, table)
    assert logits[0, :2].tolist() == [-math.inf] * 2 and not logits.isnan().any()


def test_min_tokens_end_when_the_row_is_long_enough():
    table = torch.zeros(2, 9, dtype=torch.int64)
    sampling = SamplingParams(min_tokens=2, stop_token_ids=(4,))
    rows = {0: (3, 4, sampling), 1: (3, 3, sampling)}
    stages, _ = change(rows, torch.ones(2, VOCAB), table)
    for num_tokens, short in (([4, 3], [0, 1]), ([5, 4], [1]), ([6, 5], []), ([4, 9], [0])):
        logits = torch.ones(2, VOCAB)
        for stage in stages:
            stage.apply(logits, Step(np.array(num_tokens), table))
        expected = torch.ones(2, VOCAB)
        for row in short:
            expected[row, [4, 7]] = -math.inf
        assert torch.equal(logits, expected)
