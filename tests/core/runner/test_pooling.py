"""Rows that pool make the vector of their prompt, in whatever steps it is computed."""

import numpy as np
import pytest
import torch

from hotshoe.runner.pooling import NOT_FINITE, PooledRows, PoolingRows
from hotshoe.runner.rows import Rows
from hotshoe.types import NewRow, Pooling, SamplingParams, StepPlan, StepResult

SIZE = 6


class Steps:
    """Rows and pooling over hidden states that are drawn per token id."""

    def __init__(self) -> None:
        self.rows, self.pooling = Rows(4, 32, 8), PoolingRows()
        self.table = torch.randn(64, SIZE)
        self.tokens: dict[int, list[int]] = {}

    def run(self, scheduled: dict[int, int], *fresh: NewRow) -> tuple[list[int], StepResult]:
        for new in fresh:
            self.pooling.set_row(new)
            self.tokens[new.row] = new.token_ids
        plan = StepPlan(0, list(fresh), list(scheduled), list(scheduled.values()))
        inputs = self.rows.advance(plan)
        ids = [
            self.tokens[row][p]
            for row, p in zip(
                np.repeat(inputs.rows, np.diff(inputs.query_start_loc)),
                inputs.positions,
                strict=True,
            )
        ]
        places = self.pooling.among(inputs)
        heads = {"embed": 1.0, "token_embed": 1.0, "classify": -1.0, "token_classify": -1.0}
        hidden = self.table[ids]
        found = self.pooling.take(inputs, places, hidden, lambda x, task: x * heads[task])
        result = StepResult(0, [], [])
        for pooled in found:
            pooled.book(result, pooled.vectors)
        return self.pooling.without(inputs).sample_rows.tolist(), result


def new(row: int, ids: list[int], pooling: Pooling | None) -> NewRow:
    params = SamplingParams(max_tokens=1)
    return NewRow(row, ids, len(ids), 0, [[0, 1, 2, 3]], params, 0, pooling)


def vector(result: StepResult, row: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(result.pooled[row], "<f4").copy())


@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_vectors_do_not_depend_on_chunks(chunks) -> None:
    steps, ids = Steps(), [3, 9, 4, 3, 7]
    fresh = [
        new(0, ids, Pooling("mean", normalize=False)),
        new(2, ids, Pooling("last")),
        new(1, ids, None),
    ]
    for i, count in enumerate(chunks):
        sampling, result = steps.run({2: count, 1: count, 0: count}, *(fresh if i == 0 else ()))
        assert set(result.pooled) == (set() if i + 1 < len(chunks) else {0, 2})
        assert sampling == ([1] if i + 1 == len(chunks) else [])
    hidden = steps.table[ids]
    torch.testing.assert_close(vector(result, 0), hidden.mean(0))
    torch.testing.assert_close(vector(result, 2), hidden[-1] / hidden[-1].norm())


@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_other_means_do_not_depend_on_chunks(chunks) -> None:
    steps, ids = Steps(), [3, 9, 4, 3, 7]
    kinds = ("weighted_mean", "mean_sqrt_len")
    fresh = [new(row, ids, Pooling(kind, False)) for row, kind in enumerate(kinds)]
    for i, count in enumerate(chunks):
        _, result = steps.run({0: count, 1: count}, *(fresh if i == 0 else ()))
    hidden, weights = steps.table[ids], torch.arange(1.0, 6.0)[:, None]
    torch.testing.assert_close(vector(result, 0), (weights * hidden).sum(0) / 15)
    torch.testing.assert_close(vector(result, 1), hidden.sum(0) / 5**0.5)


@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_first_states_and_maxima_do_not_depend_on_chunks(chunks) -> None:
    steps, ids = Steps(), [3, 9, 4, 3, 7]
    kinds = ("cls", "max")
    fresh = [new(row, ids, Pooling(kind, False)) for row, kind in enumerate(kinds)]
    for i, count in enumerate(chunks):
        _, result = steps.run({0: count, 1: count}, *(fresh if i == 0 else ()))
    torch.testing.assert_close(vector(result, 0), steps.table[3])
    torch.testing.assert_close(vector(result, 1), steps.table[ids].amax(0))


def test_dimensions_are_cut_before_the_vector_is_normalized() -> None:
    steps = Steps()
    _, result = steps.run({0: 2}, new(0, [1, 2], Pooling("last", True, 3)))
    wanted = steps.table[2][:3]
    torch.testing.assert_close(vector(result, 0), wanted / wanted.norm())


def test_a_row_that_is_taken_over_starts_anew() -> None:
    steps = Steps()
    steps.run({0: 2}, new(0, [1, 2, 3], Pooling("mean", False)))
    _, result = steps.run({0: 3}, new(0, [4, 5, 6], Pooling("mean", False)))
    torch.testing.assert_close(vector(result, 0), steps.table[[4, 5, 6]].mean(0))
    sampling, result = steps.run({0: 1}, new(0, [4], None))
    assert (sampling, result.pooled) == ([0], {})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_vector_that_is_not_finite_fails_its_row_alone(value, normalize) -> None:
    pooling = Pooling("last", normalize)
    vectors = torch.tensor([[1.0, value], [3.0, 4.0]])
    pooled = PooledRows([3, 1], [pooling, pooling], vectors, [1, 1])
    result = StepResult(0, [], [])
    pooled.book(result, pooled.vectors)
    assert (list(result.pooled), result.failed) == ([1], {3: NOT_FINITE})


@pytest.mark.parametrize("chunks", [[5], [2, 3]])
def test_rows_of_all_tokens_are_made_beside_others(chunks) -> None:
    steps, ids = Steps(), [3, 9, 4, 3, 7]
    fresh = [
        new(1, ids, Pooling("all", True, 4)),
        new(0, ids, Pooling("last", False)),
        new(2, ids, Pooling("all", False, task="token_classify", activation="softmax")),
    ]
    for i, count in enumerate(chunks):
        _, result = steps.run(dict.fromkeys((2, 1, 0), count), *(fresh if i == 0 else ()))
    hidden = steps.table[ids]
    cut = hidden[:, :4] / hidden[:, :4].norm(dim=1, keepdim=True)
    torch.testing.assert_close(vector(result, 1).view(5, 4), cut)
    torch.testing.assert_close(vector(result, 0), hidden[-1])
    torch.testing.assert_close(vector(result, 2).view(5, SIZE), (-hidden).softmax(1))


@pytest.mark.parametrize("chunks", [[6], [2, 4], [1] * 6])
def test_states_of_steps_do_not_depend_on_chunks(chunks) -> None:
    steps, ids = Steps(), [3, 9, 4, 9, 9, 7]
    pooling = Pooling("all", False, task="token_classify", step_token=9)
    for i, count in enumerate(chunks):
        _, result = steps.run({2: count}, *([new(2, ids, pooling)] if i == 0 else []))
    torch.testing.assert_close(vector(result, 2).view(3, SIZE), -steps.table[[9, 9, 9]])
    _, result = steps.run({2: 2}, new(2, [3, 4], Pooling("all", False)))  # forgets the steps
    torch.testing.assert_close(vector(result, 2).view(2, SIZE), steps.table[[3, 4]])


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_classes_have_a_head_and_an_activation_of_their_own(activation) -> None:
    steps = Steps()
    steps.table *= 1000.0  # far beyond what exp takes
    classes = Pooling("last", False, task="classify", activation=activation)
    _, result = steps.run({1: 2, 0: 2}, new(1, [1, 2], classes), new(0, [1, 2], Pooling("last")))
    logits = -steps.table[2]
    wanted = {None: logits, "softmax": logits.softmax(0), "sigmoid": logits.sigmoid()}
    torch.testing.assert_close(vector(result, 1), wanted[activation])
    torch.testing.assert_close(vector(result, 0), -logits / logits.norm())
