"""Steps that sample within their recording give what steps without recordings give."""

import random

import numpy as np
import pytest
import torch

from hotshoe.layers import ViewPlan
from hotshoe.platform import DeviceFacts
from hotshoe.runner.limits import Operations, RunnerLimits
from hotshoe.runner.peers import Peers
from hotshoe.runner.runner import Runner
from hotshoe.slots import GraphSpec, SampleSpec, TransferSpec, whole_step
from hotshoe.slots.reference.graph import Graph
from hotshoe.slots.reference.sampling import build
from hotshoe.slots.reference.transfer import Transfer
from hotshoe.types import NewRow, SamplingParams, StepPlan, StepResult

VOCAB, ROWS, LENGTH, BLOCK = 50, 5, 32, 4
FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
PLAIN = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=1.3, top_k=5, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(temperature=0.7, logprobs=0),
]
STAGED = [
    SamplingParams(temperature=0.8, repetition_penalty=1.4),
    SamplingParams(temperature=0, logit_bias={3: 50.0}),
    SamplingParams(temperature=0, logprobs=2, presence_penalty=1.5),
]


class Recordable:
    """The reference, which says that recordings may hold it; remembers the rows of its calls."""

    recordable = True

    def __init__(self) -> None:
        self._op = build(SampleSpec(VOCAB), FACTS)
        self.rows: list[int] = []

    def __call__(self, logits: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(logits))
        return self._op(logits, *arguments)


class TableModel:
    """Logits by last token."""

    vocab_size = hidden_size = VOCAB
    tasks = frozenset({"generate"})

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids.long()]

    def forward(self, hidden: torch.Tensor, batch) -> torch.Tensor:
        return hidden if batch.outputs_at is None else hidden[batch.outputs_at]

    def head(self, hidden: torch.Tensor, task: str) -> torch.Tensor:
        return hidden.clone()


class Pair:
    """Two runners over one model: one that records its steps, and one that does not."""

    def __init__(self) -> None:
        table = torch.randn(VOCAB, VOCAB) * 2
        self.ops = Recordable(), Recordable()
        sizes = (ROWS, 0)
        self.runners = [self._runner(table, op, n) for op, n in zip(self.ops, sizes, strict=True)]
        self._next = 0

    def _runner(
        self, table: torch.Tensor, op: Recordable, recorded: int, peers: Peers | None = None
    ) -> Runner:
        sizes = (1, 2, 4, recorded) if recorded else ()
        limits = RunnerLimits(
            ROWS, LENGTH, BLOCK, max_logprobs=5, max_samples=16, null_blocks=(99,),
            graph_sizes=sizes, piece_sizes=(), eos_token_ids=(7,),
        )  # fmt: skip
        ops = Operations(op, Transfer(TransferSpec(2), FACTS), Graph(GraphSpec(ROWS), FACTS))
        runner = Runner(TableModel(table), ops, "cpu", limits, [ViewPlan(0, whole_step)], peers)
        runner.record_graphs()
        return runner

    def step(self, rows: list[int], fresh: list[NewRow], **more) -> tuple[StepResult, ...]:
        plan = StepPlan(self._next, fresh, rows, [1] * len(rows), **more)
        self._next += 1
        return tuple(runner.execute(plan).result() for runner in self.runners)


def new(row: int, token: int, params: SamplingParams) -> NewRow:
    return NewRow(row, [token], 1, 0, [list(range(8 * row, 8 * row + 8))], params, row + 17)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_results_are_equal_for_any_mixture_of_rows(pair: Pair) -> None:
    running: dict[int, int] = {}
    for _ in range(120):
        fresh = []
        for row in range(ROWS):
            if row not in running and random.random() < 0.4:
                params = random.choice(PLAIN * 3 + STAGED)
                fresh.append(new(row, random.randrange(VOCAB), params))
                running[row] = 0
        if not running:
            continue
        rows = random.sample(list(running), len(running))
        recorded, called = pair.step(rows, fresh)
        assert recorded == called
        for row in rows:
            running[row] += 1
            if running[row] > 20 or random.random() < 0.1:
                del running[row]


def test_a_plain_step_samples_once_and_a_staged_one_again(pair: Pair) -> None:
    recording, _ = pair.ops
    recording.rows.clear()  # those of recordings
    pair.step([0, 2, 3], [new(0, 5, PLAIN[0]), new(2, 6, PLAIN[1]), new(3, 8, PLAIN[3])])
    assert recording.rows == [4, 4]  # with the padding of its recording, which ran once before
    pair.step([0, 1], [new(1, 9, STAGED[1])])
    assert recording.rows[2:] == [2, 2, 2]


def test_masks_hold_within_recorded_steps(pair: Pair) -> None:
    allowed = 11
    mask = np.zeros(-(-VOCAB // 32), np.uint32)
    mask[allowed // 32] |= 1 << (allowed % 32)
    fresh = [new(0, 5, PLAIN[0]), new(1, 6, PLAIN[1])]
    for result in pair.step([0, 1], fresh, mask_rows=[0], masks=[mask.tobytes()]):
        assert result.tokens[0] == [allowed]
    recorded, called = pair.step([0, 1], [])
    assert recorded == called


def test_a_row_without_finite_logits_fails_alone(pair: Pair) -> None:
    for runner in pair.runners:
        runner._model.table[5] = float("nan")
    recorded, called = pair.step([0, 1], [new(0, 5, PLAIN[0]), new(1, 6, PLAIN[0])])
    assert recorded == called
    assert set(recorded.failed) == {0} and recorded.rows == [1]


def test_a_result_outlives_the_next_step(pair: Pair) -> None:
    """Steps overlap: one is read when the next has sampled into the same memory."""
    runner, other = pair.runners
    plans = [StepPlan(0, [new(1, 5, PLAIN[1])], [1], [1]), StepPlan(1, [], [1], [1])]
    steps = [runner.execute(plan) for plan in plans]
    expected = [other.execute(plan).result().tokens for plan in plans]
    assert [step.result().tokens for step in steps] == expected


class Told:
    """Of two ranks: the first says its tokens, and the second, which runs behind it, hears them."""

    size = 2

    def __init__(self, rank: int, said: list[torch.Tensor]) -> None:
        self.rank, self._said = rank, said

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        assert source == 0
        if self.rank == 0:
            self._said.append(x.clone())
            return x
        return x.copy_(self._said.pop(0))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_ranks_go_on_from_the_tokens_of_the_first(pair: Pair) -> None:
    """Though the second would sample others: here it has other logits."""
    said: list[torch.Tensor] = []
    tables = pair.runners[0]._model.table, torch.randn(VOCAB, VOCAB)
    ops = Recordable(), Recordable()
    ranks = [
        pair._runner(tables[rank], ops[rank], ROWS, Peers(tp=Told(rank, said))) for rank in range(2)
    ]
    said.clear()
    for op in ops:
        op.rows.clear()
    fresh = [new(0, 5, PLAIN[0]), new(2, 6, PLAIN[1]), new(3, 8, PLAIN[2]), new(4, 8, PLAIN[3])]
    for number in range(8):
        if number == 5:
            fresh = [new(1, 9, STAGED[0])]
        rows = [0, 2, 3, 4] if number < 5 else [0, 1, 2, 3, 4]
        plan = StepPlan(number, fresh if number in (0, 5) else [], rows, [1] * len(rows))
        results = [runner.execute(plan).result() for runner in (*ranks, pair.runners[1])]
        assert results[0] == results[2]
        assert not said
        assert torch.equal(ranks[0]._tokens[rows], ranks[1]._tokens[rows])
    assert ops[1].rows == [4] * 5 + [5] * 3, "each rank samples within its recording"
