"""Several layers behind a runner: what each reads, and which one guesses."""

from collections.abc import Sequence

import pytest
import torch
from tests.core.runner.test_ahead import CountingHead, counted, run
from tests.core.runner.test_runner import VOCAB, TableModel, make_runner, new

from hotshoe.layers import ForwardBatch
from hotshoe.types import StepPlan


class Numbered(CountingHead):
    """Returns the tokens that it read, plus a hundred times its number."""

    def __init__(self, number: int, *following: CountingHead) -> None:
        super().__init__()
        self.following: Sequence[CountingHead] = following
        self._number = number

    def forward(
        self, ids: torch.Tensor, hidden: torch.Tensor, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _, found = super().forward(ids, hidden, batch)
        return found.expand(-1, VOCAB) + 100 * self._number, found

    def read(self) -> list[tuple[list[float], list[int]]]:
        """Return states and ids of each call, and forget them."""
        read = [(h[:, 0].tolist(), ids) for h, ids in zip(self.hidden, self.ids, strict=True)]
        for seen in (self.ids, self.hidden, self.batches):
            seen.clear()
        return read


@pytest.mark.parametrize("recorded", [(), (1, 2)], ids=["called", "recorded"])
def test_each_layer_reads_what_the_one_before_it_returned_a_token_earlier(
    recorded: tuple[int, ...],
) -> None:
    model, last = TableModel(), Numbered(3)
    layers = [Numbered(1, middle := Numbered(2), last), middle, last]
    runner = make_runner(model, recorded, recorded, head=layers[0])
    runner.warm_up([2])
    assert all(layer.ids for layer in layers)
    runner.record_graphs()
    for layer in layers:
        layer.read()
    follows = model.table.argmax(1).tolist()
    a = follows[9]
    result = run(runner, 4, StepPlan(0, [new(2, [5, 6, 9])], [2], [3]))
    assert result.ahead == {2: counted(a, 4)}
    first, second, third = (layer.read() for layer in layers)
    assert first == [(model.table[[5, 6, 9], 0].tolist(), [6, 9, a])]
    d, e, f = counted(a, 3)
    whole = ([0, 106, 109], [6, 9, a])
    assert second[0] == whole
    assert third[0] == ([0, 206, 209], [6, 9, a])
    if not recorded:  # replayed elsewhere
        assert second[1:] == [([100 + a], [d])]
        assert third[1:] == [([200 + a], [d]), ([200 + d], [e]), ([300 + e], [f])]
    b = follows[a]
    result = run(runner, 1, StepPlan(1, [], [2], [1]))
    assert [layer.read()[0] for layer in layers[1:]] == [([100 + a], [b]), ([200 + a], [b])]
    assert result.ahead == {2: counted(b, 1)}


def test_rows_of_steps_without_drafts_go_on_with_the_first_layer() -> None:
    model, second = TableModel(), Numbered(2)
    first = Numbered(1, second)
    runner = make_runner(model, head=first)
    runner.warm_up([2])
    first.read(), second.read()
    run(runner, 0, StepPlan(0, [new(2, [5, 6])], [2], [2]))
    assert first.read() and not second.read()
    run(runner, 2, StepPlan(1, [new(0, [9, 11])], [2, 0], [1, 2]))
    assert len(first.read()) == 2 and len(second.read()) == 1  # chains are the first layer's
    run(runner, 2, StepPlan(2, [], [0], [1]))
    assert len(first.read()) == 1 and len(second.read()) == 2
