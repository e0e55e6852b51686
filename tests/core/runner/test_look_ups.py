"""Look-ups behind a runner: which tokens are searched, and what becomes of the drafts."""

import pytest
import torch
from tests.core.runner.test_recorded_sampling import Recordable
from tests.core.runner.test_runner import LENGTH, ROWS, VOCAB, TableModel, make_runner, new

from hotshoe.runner import look_ups
from hotshoe.runner.look_ups import LookUps
from hotshoe.runner.runner import Runner
from hotshoe.types import StepPlan, StepResult


class Counting:
    """Guesses one more than the last token; none behind an odd one. Remembers known tokens."""

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []

    def search(self, tokens: torch.Tensor, lengths: torch.Tensor, limit: int) -> torch.Tensor:
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        known = [row[:length] for row, length in rows]
        assert all(len(row) == n for row, n in zip(known, lengths.tolist(), strict=True))
        self.calls.append(known)
        last = torch.tensor([row[-1] for row in known])[:, None]
        found = (last + torch.arange(1, limit + 1)) % VOCAB
        return found.where(last % 2 == 0, -1).to(torch.int32)


def counted(last: int, count: int) -> list[int]:
    return [(last + i) % VOCAB for i in range(1, count + 1)] if last % 2 == 0 else []


@pytest.fixture
def model() -> TableModel:
    return TableModel()


@pytest.fixture
def proposer() -> Counting:
    return Counting()


@pytest.fixture
def runner(model: TableModel, proposer: Counting) -> Runner:
    return make_runner(model, search=proposer.search)


def run(runner: Runner, num_ahead: int, plan: StepPlan) -> StepResult:
    plan.num_ahead = num_ahead
    return runner.execute(plan).result()


def test_it_searches_all_that_is_known_of_rows_that_sample(
    model: TableModel, runner: Runner, proposer: Counting
) -> None:
    follows = model.table.argmax(1).tolist()
    prompts = [new(2, [5, 6, 9], computed=2), new(0, [11, 12, 13]), new(3, [8])]
    result = run(runner, 3, StepPlan(0, prompts, [2, 0, 3], [1, 2, 1]))
    assert proposer.calls == [[[5, 6, 9, follows[9]], [8, follows[8]]]]
    assert result.ahead == {row: counted(follows[x], 3) for row, x in ((2, 9), (3, 8))}
    assert run(runner, 3, StepPlan(1, [new(1, [3, 4, 5])], [1], [2])).ahead == {}
    assert len(proposer.calls) == 1


def test_without_a_wish_for_drafts_it_does_nothing(runner: Runner, proposer: Counting) -> None:
    result = run(runner, 0, StepPlan(0, [new(1, [3, 4])], [1], [2]))
    assert (result.ahead, proposer.calls) == ({}, [])


@pytest.mark.parametrize("how", ["called", "recorded", "recorded with its sampling"])
@pytest.mark.parametrize("right", [0, 1, 2], ids=["none", "one", "both"])
def test_known_are_the_accepted_drafts_and_the_token_behind_them(
    model: TableModel, proposer: Counting, how: str, right: int
) -> None:
    sizes = () if how == "called" else (8,)
    sample = Recordable() if how.endswith("sampling") else None
    runner = make_runner(model, sizes, sizes, search=proposer.search, sample=sample)
    runner.warm_up([2])
    runner.record_graphs()
    follows = model.table.argmax(1).tolist()
    run(runner, 2, StepPlan(0, [new(1, [3, 4]), new(2, [8])], [1, 2], [2, 1]))
    text = [3, 4]
    for _ in range(4):
        text.append(follows[text[-1]])
    drafts = [t if i < right else (t + 1) % VOCAB for i, t in enumerate(text[3:5])]
    proposer.calls.clear()
    plan = StepPlan(1, [], [1, 2], [3, 1], draft_rows=[1], drafts=[drafts])
    result = run(runner, 2, plan)
    other = [8, follows[8], follows[follows[8]]]
    assert proposer.calls == [[text[: 4 + right], other]]
    assert sample is None or sample.rows[-1] == 8, "a recording sampled"
    assert result.tokens == [text[3 : 4 + right], other[2:]]
    assert result.ahead == {1: counted(text[3 + right], 2), 2: counted(other[2], 2)}


def test_many_tokens_are_searched_in_pieces(
    runner: Runner, proposer: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ups, "MOST_TOKENS", 2 * 5)  # of rows of four tokens, and one more
    prompts = [new(row, [2 * row, 1, 1, 1]) for row in range(3)]
    result = run(runner, 1, StepPlan(0, prompts, [0, 1, 2], [4, 4, 4]))
    assert [len(call) for call in proposer.calls] == [2, 1]
    assert sorted(result.ahead) == [0, 1, 2]


def test_memory_is_measured_with_the_largest_search(proposer: Counting) -> None:
    tokens = torch.zeros(ROWS, LENGTH, dtype=torch.int32)
    LookUps(proposer.search, tokens).warm_up()
    [known] = proposer.calls
    assert [len(row) for row in known] == [LENGTH] * ROWS
