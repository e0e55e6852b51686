"""A head behind a runner: what it reads, where it writes, and how far it goes on."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from tests.core.runner.test_runner import BLOCK, LENGTH, VOCAB, TableModel, make_runner, new

from hotshoe.layers import ForwardBatch
from hotshoe.runner import later
from hotshoe.runner.ahead import Written
from hotshoe.runner.runner import Runner
from hotshoe.types import StepPlan, StepResult


class Layer:
    """A cache layer that reads the first view."""

    view, cache_spec = 0, SimpleNamespace(kind="full", tokens_per_entry=1)


class CountingHead:
    """Guesses one more than the token that it reads; remembers all that it was given."""

    cache_layers = (Layer(),)

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self.hidden: list[torch.Tensor] = []
        self.batches: list[ForwardBatch] = []

    def forward(
        self, ids: torch.Tensor, hidden: torch.Tensor, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.ids.append(ids.tolist())
        self.hidden.append(hidden.clone())
        self.batches.append(batch)
        if batch.between is not None:
            batch.between(hidden, lambda q, views: q, None)
        found = ids if batch.outputs_at is None else ids[batch.outputs_at]
        return hidden[:1].expand(len(found), -1) + 1, found[:, None].float()

    def guess(self, hidden: torch.Tensor) -> torch.Tensor:
        return (hidden[:, 0].long() + 1) % VOCAB


@pytest.fixture
def model() -> TableModel:
    return TableModel()


@pytest.fixture
def head() -> CountingHead:
    return CountingHead()


@pytest.fixture
def runner(model: TableModel, head: CountingHead) -> Runner:
    return make_runner(model, head=head)


def run(runner: Runner, num_ahead: int, plan: StepPlan) -> StepResult:
    plan.num_ahead = num_ahead
    return runner.execute(plan).result()


def counted(first: int, count: int) -> list[int]:
    return [(first + i) % VOCAB for i in range(1, count + 1)]


def test_it_reads_the_token_behind_each_position(
    model: TableModel, runner: Runner, head: CountingHead
) -> None:
    plan = StepPlan(0, [new(2, [5, 6, 9]), new(0, [11, 12, 13])], [2, 0], [3, 2])
    result = run(runner, 1, plan)
    token = int(model.table[9].argmax())
    assert head.ids == [[6, 9, token, 12, 13]]
    assert torch.equal(head.hidden[0], model.table[torch.tensor([5, 6, 9, 11, 12])])
    [batch] = head.batches
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.outputs_at is not None and batch.outputs_at.tolist() == [2]
    assert result.ahead == {2: counted(token, 1)}


def test_without_a_wish_for_drafts_it_fills_its_cache_alone(
    runner: Runner, head: CountingHead
) -> None:
    result = run(runner, 0, StepPlan(0, [new(1, [3, 4])], [1], [2]))
    assert (result.ahead, len(head.ids)) == ({}, 1)
    between = head.batches[0].between
    assert between is not None, "nobody wants what attention reads"
    with pytest.raises(Written):
        between(torch.rand(3, 2, 4), lambda q, views: q, None)
    result = run(runner, 3, StepPlan(1, [new(1, [3, 4, 5, 6])], [1], [2]))
    assert (result.rows, result.ahead, len(head.ids)) == ([], {}, 2)


@pytest.mark.parametrize("recorded", [(), (4,)], ids=["called", "recorded"])
def test_what_idle_steps_leave_is_written_in_one_pass(
    model: TableModel, head: CountingHead, recorded: tuple[int, ...]
) -> None:
    runner = make_runner(model, recorded, recorded, head=head)
    runner.warm_up([2])
    runner.record_graphs()
    for seen in (head.ids, head.hidden, head.batches):
        seen.clear()
    follows = model.table.argmax(1).tolist()
    run(runner, 0, StepPlan(0, [new(2, [5, 6]), new(0, [11])], [2, 0], [2, 1]))
    assert len(head.ids) == 1  # a prompt's is written at once
    texts = {row: [last] for row, last in ((2, 6), (0, 11))}
    for number in range(1, 4):
        run(runner, 0, StepPlan(number, [], [2, 0], [1, 1]))
    for text in texts.values():
        for _ in range(6):
            text.append(follows[text[-1]])
    assert len(head.ids) == 1
    result = run(runner, 2, StepPlan(4, [], [2, 0], [1, 1]))
    assert result.ahead == {row: counted(texts[row][5], 2) for row in (2, 0)}
    width = max(recorded, default=2)  # behind those of the rows stand nobody's
    batch, kept = head.batches[1], [n * width + i for n in range(3) for i in range(2)]
    own = {row: texts[row][2:5] for row in (2, 0)}
    assert [head.ids[1][i] for i in kept] == [own[row][n] for n in range(3) for row in (2, 0)]
    assert [int(batch.positions[i]) for i in kept] == [2, 1, 3, 2, 4, 3]
    slots = batch.views[0].slot_mapping
    base = {2: 16 * BLOCK + 2, 0: 1}
    assert [int(slots[i]) for i in kept] == [base[row] + n for n in range(3) for row in (2, 0)]
    before = torch.tensor([texts[row][1 + n] for n in range(3) for row in (2, 0)])
    assert torch.equal(head.hidden[1][kept], model.table[before])
    assert batch.between is not None and len(head.batches) == 4


@pytest.mark.parametrize(("kind", "tokens"), [("state", 1), ("window", 1), ("latent", 4)])
def test_caches_that_take_more_than_a_slot_are_written_at_once(
    runner: Runner, head: CountingHead, kind: str, tokens: int
) -> None:
    head.cache_layers = (Layer(),)
    head.cache_layers[0].cache_spec = SimpleNamespace(kind=kind, tokens_per_entry=tokens)
    runner.warm_up([2])
    head.ids.clear()
    run(runner, 0, StepPlan(0, [new(2, [5, 6])], [2], [2]))
    run(runner, 0, StepPlan(1, [], [2], [1]))
    assert [len(ids) for ids in head.ids] == [2, 1]


def test_what_a_row_leaves_is_written_when_it_ends(
    runner: Runner, head: CountingHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "TOKENS", 4)
    runner.warm_up([2])
    head.ids.clear()
    run(runner, 0, StepPlan(0, [new(2, [5, 6]), new(0, [11])], [2, 0], [2, 1]))
    run(runner, 0, StepPlan(1, [], [2, 0], [1, 1]))
    run(runner, 0, StepPlan(2, [], [2, 0], [1, 1]))
    assert len(head.ids) == 1
    run(runner, 0, StepPlan(3, [], [0], [1]))
    assert [len(ids) for ids in head.ids] == [3, 4]
    for number in range(4, 8):
        assert len(head.ids) == 2
        run(runner, 0, StepPlan(number, [], [0], [1]))
    assert [len(ids) for ids in head.ids] == [3, 4, 4]  # there was no room for more


def test_a_chain_goes_on_one_position_at_a_time(
    model: TableModel, runner: Runner, head: CountingHead
) -> None:
    result = run(runner, 3, StepPlan(0, [new(1, [3, 4]), new(2, [8])], [1, 2], [2, 1]))
    tokens = [int(model.table[4].argmax()), int(model.table[8].argmax())]
    assert result.ahead == {row: counted(t, 3) for row, t in zip((1, 2), tokens, strict=True)}
    _, second, third = head.batches
    assert [b.positions.tolist() for b in (second, third)] == [[2, 1], [3, 2]]
    assert second.shape.seq_lens.tolist() == [3, 2]
    assert second.shape.query_start_loc.tolist() == [0, 1, 2]
    # Blocks of row r are 8 r, 8 r + 1, ...
    assert second.views[0].slot_mapping.tolist() == [8 * BLOCK + 2, 16 * BLOCK + 1]
    assert torch.equal(head.hidden[2], head.hidden[1][:1].expand(2, -1) + 1)


def test_recordings_keep_what_they_read(
    model: TableModel, runner: Runner, head: CountingHead
) -> None:
    """Behind a further warm-up, too; rows that are no requests have no room."""
    runner.warm_up([2])
    ahead = runner._ahead
    assert ahead is not None
    ahead.record(lambda function: function, (3,))
    runner.warm_up([2])
    head.hidden.clear()
    result = run(runner, 3, StepPlan(0, [new(1, [3, 4]), new(2, [8])], [1, 2], [2, 1]))
    tokens = [int(model.table[4].argmax()), int(model.table[8].argmax())]
    assert result.ahead == {row: counted(t, 3) for row, t in zip((1, 2), tokens, strict=True)}
    assert [len(hidden) for hidden in head.hidden] == [3, 3, 3]


@pytest.mark.parametrize("recorded", [(), (8,)], ids=["called", "recorded"])
@pytest.mark.parametrize(
    ("drafts", "accepted"), [([0, 0], 0), ([1, 0], 1), ([1, 1], 2)], ids=["none", "one", "both"]
)
def test_it_goes_on_behind_the_last_accepted_draft(
    model: TableModel,
    head: CountingHead,
    drafts: Sequence[int],
    accepted: int,
    recorded: tuple[int, ...],
) -> None:
    runner = make_runner(model, recorded, recorded, head=head)
    runner.warm_up([2])
    runner.record_graphs()
    follows = model.table.argmax(1).tolist()
    run(runner, 0, StepPlan(0, [new(0, [2]), new(1, [3, 4])], [0, 1], [1, 2]))
    known = follows[4]
    right = [follows[known], follows[follows[known]]]
    wrong = [(token + 1) % VOCAB for token in right]
    given = [r if flag else w for flag, r, w in zip(drafts, right, wrong, strict=True)]
    plan = StepPlan(1, [], [0, 1], [1, 3], draft_rows=[1], drafts=[given])
    result = run(runner, 2, plan)
    last = result.tokens[1][-1]
    assert len(result.tokens[1]) == accepted + 1
    assert result.ahead[1] == counted(last, 2)
    assert result.ahead[0] == counted(follows[follows[2]], 2)
    assert head.batches[-2].outputs_at.tolist() == [0, 1 + accepted]
    assert head.batches[-1].positions[:2].tolist() == [2, 3 + accepted]
    assert head.batches[-2].shape.max_query_len == (1 if recorded else 3)


def test_a_chain_ends_with_the_blocks_of_its_row(
    model: TableModel, runner: Runner, head: CountingHead
) -> None:
    short = new(1, list(range(BLOCK - 1)))
    short.block_ids = [[8]]
    result = run(runner, 4, StepPlan(0, [short, new(2, [8])], [1, 2], [BLOCK - 1, 1]))
    assert {row: len(found) for row, found in result.ahead.items()} == {1: 2, 2: 4}
    assert head.batches[1].views[0].slot_mapping.tolist()[0] == 8 * BLOCK + BLOCK - 1
    for batch in head.batches[2:]:  # nobody's block is written in its place
        assert batch.views[0].slot_mapping.tolist()[0] == 99 * BLOCK
    plan = StepPlan(1, [], [1], [1], block_groups=[0], block_rows=[1], block_cols=[1])
    plan.block_ids = [9]
    assert len(run(runner, 4, plan).ahead[1]) == 4


def test_a_chain_ends_with_the_longest_sequence(model: TableModel, runner: Runner) -> None:
    result = run(runner, 4, StepPlan(0, [new(3, [1] * (LENGTH - 2))], [3], [LENGTH - 2]))
    assert len(result.ahead[3]) == 3
