"""Embeddings of a prompt reach the tokens that they stand for, in whatever steps."""

import numpy as np
import pytest
import torch

from hotshoe.runner.given import GivenRows
from hotshoe.runner.rows import Rows
from hotshoe.types import NewRow, SamplingParams, StepPlan


def new(row: int, embeds: torch.Tensor | None, length: int, computed: int = 0) -> NewRow:
    data = None if embeds is None else embeds.numpy().astype("<f4").tobytes()
    params = SamplingParams()
    return NewRow(row, [0] * length, length, computed, [[0, 1, 2, 3]], params, 0, None, data)


@pytest.mark.parametrize("chunks", [[6], [1, 2, 3], [4, 1, 1]])
def test_every_row_is_given_once(chunks) -> None:
    rows, given = Rows(4, 32, 8), GivenRows(3, "cpu")
    embeds = torch.randn(6, 3)
    fresh = [new(2, embeds, 6), new(1, None, 6)]
    seen = []
    for i, count in enumerate(chunks):
        news = fresh if i == 0 else []
        for one in news:
            given.set_row(one)
        inputs = rows.advance(StepPlan(i, news, [1, 2], [count, count]))
        [(places, found)] = given.among(inputs)
        assert (places.start, places.stop) == (count, 2 * count)
        seen.append(found)
    torch.testing.assert_close(torch.cat(seen), embeds)
    inputs = rows.advance(StepPlan(9, [], [1, 2], [1, 1]))
    assert given.among(inputs) == []


def test_after_preemption_generated_tokens_are_not_given() -> None:
    rows, given = Rows(4, 32, 8), GivenRows(3, "cpu")
    embeds = torch.randn(4, 3)
    resumed = new(0, embeds, 6, computed=2)
    given.set_row(resumed)
    [(places, found)] = given.among(rows.advance(StepPlan(0, [resumed], [0], [4])))
    assert (places.start, places.stop) == (0, 2)
    np.testing.assert_array_equal(found.numpy(), embeds[2:].numpy())


def test_a_row_that_is_taken_over_gives_nothing() -> None:
    rows, given = Rows(4, 32, 8), GivenRows(3, "cpu")
    for one in (new(0, torch.randn(4, 3), 4), new(0, None, 4)):
        given.set_row(one)
    assert given.among(rows.advance(StepPlan(0, [one], [0], [4]))) == []
