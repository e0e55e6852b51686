"""A head that reads its model's caches: all drafts have one position."""

import pytest
import torch
from tests.core.runner.test_ahead import CountingHead, Layer, counted, run
from tests.core.runner.test_runner import VOCAB, TableModel, make_runner, new

from hotshoe.runner.reading import ReadingAhead
from hotshoe.types import StepPlan


class ReadingHead(CountingHead):
    cache_layers = ()
    reads = (Layer(),)


@pytest.mark.parametrize("recorded", [False, True])
def test_all_drafts_stand_where_the_last_known_token_is(recorded: bool) -> None:
    model, head = TableModel(), ReadingHead()
    runner = make_runner(model, head=head)
    runner.warm_up([2])
    ahead = runner._ahead
    assert isinstance(ahead, ReadingAhead)
    if recorded:
        ahead.record(lambda function: function, (3,))
    for seen in (head.ids, head.hidden, head.batches):
        seen.clear()
    result = run(runner, 3, StepPlan(0, [new(1, [3, 4]), new(2, [8])], [1, 2], [2, 1]))
    tokens = [int(model.table[4].argmax()), int(model.table[8].argmax())]
    assert result.ahead == {row: counted(t, 3) for row, t in zip((1, 2), tokens, strict=True)}
    assert [ids[:2] for ids in head.ids] == [[(t + i) % VOCAB for t in tokens] for i in range(3)]
    assert torch.equal(head.hidden[0][:2], model.table[torch.tensor([4, 8])])
    assert [b.positions.tolist()[:2] for b in head.batches] == [[1, 0]] * 3
    assert [b.shape.seq_lens.tolist()[:2] for b in head.batches] == [[2, 1]] * 3


def test_it_goes_on_behind_the_last_accepted_draft() -> None:
    model, head = TableModel(), ReadingHead()
    runner = make_runner(model, head=head)
    run(runner, 1, StepPlan(0, [new(1, [3, 4])], [1], [2]))
    first = int(model.table[4].argmax())
    second = int(model.table[first].argmax())
    wrong = (int(model.table[second].argmax()) + 1) % VOCAB
    head.batches.clear()
    plan = StepPlan(1, [], [1], [3], draft_rows=[1], drafts=[[second, wrong]])
    run(runner, 2, plan)
    assert [b.positions.tolist() for b in head.batches] == [[3], [3]]
    assert torch.equal(head.hidden[-2], model.table[torch.tensor([second])])


def test_it_is_not_asked_where_nobody_wants_drafts() -> None:
    head = ReadingHead()
    runner = make_runner(TableModel(), head=head)
    assert run(runner, 0, StepPlan(0, [new(1, [3, 4])], [1], [2])).ahead == {}
    assert run(runner, 2, StepPlan(1, [new(1, [3, 4, 5])], [1], [2])).ahead == {}
    assert head.ids == []
