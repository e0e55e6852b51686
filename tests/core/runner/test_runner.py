"""The runner over a model whose logits are a table: token t is followed by row t's distribution."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from hotshoe.layers import Changes, ForwardBatch, ViewPlan
from hotshoe.models.base import DraftHead
from hotshoe.platform import DeviceFacts
from hotshoe.runner.graphs import graph_sizes
from hotshoe.runner.limits import Operations, RunnerLimits, Search
from hotshoe.runner.peers import Peers
from hotshoe.runner.runner import Runner
from hotshoe.slots import (
    AttentionMetadata,
    CacheView,
    CommunicatorOp,
    GraphSpec,
    SampleOp,
    SampleSpec,
    TransferSpec,
    whole_step,
)
from hotshoe.slots.reference.graph import Graph
from hotshoe.slots.reference.sampling import build
from hotshoe.slots.reference.transfer import Transfer
from hotshoe.types import NewRow, SamplingParams, StepPlan, StepResult

VOCAB, ROWS, LENGTH, BLOCK = 50, 4, 32, 4
FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
GREEDY = SamplingParams(temperature=0)


class TableModel:
    """Logits by last token, and these as vectors; remembers the tokens and batches it saw."""

    vocab_size = hidden_size = VOCAB
    tasks = frozenset({"generate", "embed"})

    def __init__(self) -> None:
        # Each row has the same logits in another order, too far apart for rounding to swap them.
        self.table = torch.stack([torch.randperm(VOCAB) for _ in range(VOCAB)]) / 8 - 3
        self.batches: list[ForwardBatch] = []
        self.ids: list[list[int]] = []

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        self.ids.append(ids.tolist())
        return self.table[ids.long()]

    def scale_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * rows

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        return hidden if batch.outputs_at is None else hidden[batch.outputs_at]

    def head(self, hidden: torch.Tensor, task: str) -> torch.Tensor:
        return hidden.clone()


@pytest.fixture
def model() -> TableModel:
    return TableModel()


def make_runner(
    model: TableModel,
    sizes: tuple[int, ...] = (),
    pieces: tuple[int, ...] = (),
    shared: tuple[int, ...] = (),
    communicator: CommunicatorOp | None = None,
    head: DraftHead | None = None,
    search: Search | None = None,
    sample: SampleOp | None = None,
) -> Runner:
    limits = RunnerLimits(
        ROWS,
        LENGTH,
        BLOCK,
        max_logprobs=5,
        max_samples=16,
        null_blocks=(99,),
        graph_sizes=sizes,
        piece_sizes=pieces,
        shared_sizes=shared,
        eos_token_ids=(7,),
    )
    ops = Operations(
        sample or build(SampleSpec(VOCAB), FACTS),
        Transfer(TransferSpec(2), FACTS),
        Graph(GraphSpec(ROWS), FACTS),
        search=search,
    )
    plans, peers = [ViewPlan(0, whole_step)], Peers(tp=communicator)
    runner = Runner(model, ops, "cpu", limits, plans, peers)
    if head is not None:
        runner.add_head(head)
    return runner


@pytest.fixture
def runner(model: TableModel) -> Runner:
    return make_runner(model)


def new(row: int, ids: list[int], params: SamplingParams = GREEDY, computed: int = 0) -> NewRow:
    return NewRow(row, ids, len(ids), computed, [list(range(8 * row, 8 * row + 8))], params, row)


def step(runner: Runner, number: int, rows: dict[int, int], *fresh: NewRow) -> StepResult:
    plan = StepPlan(number, list(fresh), list(rows), list(rows.values()))
    return runner.execute(plan).result()


def test_greedy_tokens_follow_the_table(model: TableModel, runner: Runner) -> None:
    result = step(runner, 0, {2: 3, 0: 1}, new(2, [5, 6, 9]), new(0, [11]))
    assert result.rows == [2, 0]
    expected = model.table.argmax(1)
    assert result.tokens == [[expected[9]], [expected[11]]]
    following = step(runner, 1, {0: 1, 2: 1})
    assert following.tokens == [[expected[expected[11]]], [expected[expected[9]]]]


def test_a_step_can_be_started_before_the_last_ones_tokens_are_known(
    model: TableModel, runner: Runner
) -> None:
    first = runner.execute(StepPlan(0, [new(1, [3])], [1], [1]))
    second = runner.execute(StepPlan(1, [], [1], [1]))
    token = int(model.table[3].argmax())
    assert second.result().tokens == [[int(model.table[token].argmax())]]
    assert first.result().tokens == [[token]]


def test_positions_and_lengths_reach_the_model(model: TableModel, runner: Runner) -> None:
    step(runner, 0, {1: 2, 3: 5}, new(1, [1, 2, 3, 4], computed=2), new(3, [9] * 9))
    [batch] = model.batches
    assert model.ids == [[3, 4, 9, 9, 9, 9, 9]]
    assert batch.positions.tolist() == [2, 3, 0, 1, 2, 3, 4]
    assert batch.shape.seq_lens.tolist() == [4, 5]
    assert batch.shape.query_start_loc.tolist() == [0, 2, 7]
    assert (batch.shape.max_query_len, batch.shape.max_seq_len) == (5, 5)
    assert batch.outputs_at is not None
    assert batch.outputs_at.tolist() == [1]  # row 3 is still inside its prompt


def test_a_step_inside_prompts_wants_no_outputs(model: TableModel, runner: Runner) -> None:
    result = step(runner, 0, {3: 5}, new(3, [9] * 9))
    assert (result.rows, result.failed) == ([], {})
    [batch] = model.batches
    assert batch.outputs_at is not None
    assert batch.outputs_at.tolist() == []
    assert step(runner, 1, {3: 4}).rows == [3]


def test_a_row_with_nan_fails_alone(model: TableModel, runner: Runner) -> None:
    model.table[:, 13] = -math.inf  # the other row must not come to the one with NaN by itself
    model.table[13] = math.nan
    result = step(runner, 0, {0: 1, 1: 1}, new(0, [13]), new(1, [12]))
    assert list(result.failed) == [0]
    assert "NaN" in result.failed[0]
    assert (result.rows, result.tokens) == ([1], [[int(model.table[12].argmax())]])
    assert step(runner, 1, {1: 1}).rows == [1]


def test_logprobs_are_those_of_the_model(model: TableModel, runner: Runner) -> None:
    params = SamplingParams(temperature=0.7, logprobs=3, repetition_penalty=1.5)
    result = step(runner, 0, {0: 1}, new(0, [4], params))
    [found] = result.logprobs[0]
    expected = model.table[4].double().log_softmax(0)
    assert found.token_ids[0] == result.tokens[0][0]
    assert found.token_ids[1:] == tuple(expected.topk(3).indices.tolist())
    for token_id, value in zip(found.token_ids, found.logprobs, strict=True):
        assert value == pytest.approx(float(expected[token_id]), abs=1e-5)


@pytest.mark.parametrize("chunks", [[6], [1, 5], [2, 2, 2], [5, 1]])
def test_prompt_logprobs_over_chunks(model: TableModel, runner: Runner, chunks: list[int]) -> None:
    prompt = [3, 1, 4, 1, 5, 9]
    params = SamplingParams(temperature=0, prompt_logprobs=2)
    fresh = [new(2, prompt, params)]
    found = []
    for number, count in enumerate(chunks):
        result = step(runner, number, {2: count}, *fresh)
        found += result.prompt_logprobs.get(2, [])
        fresh = []
    expected = model.table.double().log_softmax(1)
    assert len(found) == len(prompt) - 1
    for before, after, entry in zip(prompt, prompt[1:], found, strict=False):
        assert entry.token_ids[0] == after
        assert entry.logprobs[0] == pytest.approx(float(expected[before, after]), abs=1e-5)
        assert entry.rank == int((expected[before] > expected[before, after]).sum()) + 1
    assert step(runner, 9, {2: 1}).prompt_logprobs == {}
    step(runner, 10, {2: 1, 0: 3}, new(0, [6] * 4))
    assert model.batches[-1].outputs_at is not None  # no prompt is predicted any more


def test_prompts_are_predicted_a_part_at_a_time(
    model: TableModel, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotshoe.runner.prompt_logprobs.MAX_POSITIONS", 3)
    heights = []
    head = model.head
    model.head = lambda hidden, task: heights.append(len(hidden)) or head(hidden, task)
    prompts = {0: [3, 1, 4, 1, 5, 9, 2, 6], 1: [5, 3, 5], 2: [8, 9, 7, 9]}
    wanted = {0: 2, 1: None, 2: 0}
    fresh = [
        new(row, ids, SamplingParams(temperature=0, prompt_logprobs=wanted[row]))
        for row, ids in prompts.items()
    ]
    result = step(runner, 0, {2: 4, 1: 3, 0: 8}, *fresh)
    assert max(heights) <= 3
    expected = model.table.log_softmax(1)
    assert set(result.prompt_logprobs) == {0, 2}
    for row, found in result.prompt_logprobs.items():
        ids = prompts[row]
        assert [x.token_ids[0] for x in found] == ids[1:]
        assert {len(x.token_ids) for x in found} == {1 + wanted[row]}
        values = [float(expected[a, b]) for a, b in pairwise(ids)]
        assert [x.logprobs[0] for x in found] == pytest.approx(values, abs=1e-5)


def test_a_prompt_given_up_before_it_was_predicted_slows_nothing(model: TableModel) -> None:
    runner = make_runner(model, graph_sizes(ROWS))
    runner.record_graphs()
    asking = SamplingParams(temperature=0, prompt_logprobs=1)
    step(runner, 0, {0: 1, 1: 2}, new(0, [9]), new(1, [5, 6, 7, 8], asking))
    step(runner, 1, {0: 1, 2: 1}, new(2, [3]))  # row 1 was aborted
    step(runner, 2, {0: 1, 2: 1, 3: 1}, new(3, [4]))
    assert model.batches[-1].shape.num_reqs == 4  # padded, so as recorded
    step(runner, 3, {0: 1, 2: 2}, new(2, [3, 4, 5]))
    assert model.batches[-1].outputs_at is not None


def test_a_reused_row_forgets_its_predecessor(model: TableModel, runner: Runner) -> None:
    step(runner, 0, {0: 2}, new(0, [8, 9], SamplingParams(prompt_logprobs=1, logprobs=1)))
    result = step(runner, 1, {0: 1}, new(0, [21]))
    assert result.tokens == [[int(model.table[21].argmax())]]
    assert result.logprobs == {}
    assert result.prompt_logprobs == {}


def test_a_seed_gives_the_same_tokens_in_any_company(model: TableModel, runner: Runner) -> None:
    params = SamplingParams(temperature=1.0)

    def tokens(row: int, company: list[int]) -> list[int]:
        seeded = NewRow(row, [17], 1, 0, [[8 * row]], params, seed=1234)
        others = [NewRow(r, [r], 1, 0, [[8 * r]], params, seed=r) for r in company]
        found = []
        for number in range(6):
            order = np.random.permutation([row, *company]).tolist()
            rows = dict.fromkeys(order, 1)
            result = step(runner, number, rows, *([seeded, *others] if number == 0 else []))
            found.append(result.tokens[result.rows.index(row)])
        return found

    assert tokens(0, []) == tokens(3, [1, 2]) == tokens(1, [0, 2, 3])


def test_what_is_to_be_recorded_has_arrived_before_the_next_is_sent(
    model: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host memory holds the steps in flight alone, and a device may copy late."""
    events: list[str] = []
    plain = Transfer.upload

    def upload(transfer: Transfer, source: torch.Tensor, target: torch.Tensor) -> None:
        events.append("sent")
        plain(transfer, source, target)

    def download(transfer: Transfer, tensors: list[torch.Tensor]):
        return lambda: events.append("arrived")

    monkeypatch.setattr(Transfer, "upload", upload)
    monkeypatch.setattr(Transfer, "download", download)
    make_runner(model, (1, 2, 4), (4, 8)).record_graphs(every=True)
    assert events == ["sent", "arrived"] * 5


def test_a_recorded_step_pads_with_rows_that_own_nothing(model: TableModel) -> None:
    runner = make_runner(model, graph_sizes(ROWS))
    runner.record_graphs()
    model.batches.clear()  # those of recordings
    first = step(runner, 0, {2: 1, 0: 1, 1: 1}, new(2, [5]), new(0, [9]), new(1, [7]))
    [batch] = model.batches
    assert first.rows == [2, 0, 1]
    assert first.tokens == [[int(model.table[t].argmax())] for t in (5, 9, 7)]
    assert batch.shape.num_reqs == 4
    assert batch.shape.seq_lens.tolist() == [1, 1, 1, 1]
    assert batch.shape.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert batch.views[0].slot_mapping.tolist()[3] == 99 * BLOCK
    assert set(batch.views[0].block_table[3].tolist()) == {99}
    assert batch.views[0].block_table[0, :8].tolist() == list(range(16, 24))


def test_a_step_waits_for_no_slow_recording(monkeypatch, caplog) -> None:
    monkeypatch.setattr("hotshoe.runner.recording.RECORDING_S", -1.0)
    model = AttendingModel()
    runner = make_runner(model, graph_sizes(ROWS), (4, 8))
    runner.record_graphs()
    step(runner, 0, {0: 1}, new(0, [3]))
    assert model.batches[-1].shape.num_reqs == ROWS  # the largest alone was recorded
    step(runner, 1, {1: 3}, new(1, [3, 4, 5]))
    assert len(model.batches[-1].positions) == 8
    assert "those of fewer than 4 decoding requests are padded" in caplog.text
    assert "those of fewer than 8 tokens beside prompts are padded" in caplog.text


def test_ranks_record_the_same_steps(monkeypatch) -> None:
    """One that is slow is so for all; one that is not goes by the others."""

    class Group:
        rank = 0

        def __init__(self, others: list[float]) -> None:
            self.others = iter(others)

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x + next(self.others)

    for others, offered in (([1.0, 0.0], [1, 2, 4]), ([1.0, 1.0], [4, 4, 4])):
        runner = make_runner(TableModel(), (1, 2, 4), communicator=Group(others))
        runner.record_graphs()
        found = runner._decodes[Changes.NOTHING]
        assert [found.size_for(n) for n in (1, 2, 4)] == offered
    monkeypatch.setattr("hotshoe.runner.recording.RECORDING_S", -1.0)
    runner = make_runner(TableModel(), (1, 2, 4), communicator=Group([0.0, 0.0]))
    runner.record_graphs()
    assert runner._decodes[Changes.NOTHING].size_for(1) == 4


def test_a_size_is_recorded_when_it_is_first_wanted(model: TableModel) -> None:
    """And the step that wants it computes what it would without."""
    runner = make_runner(model, (1, 2, 3, 4))
    runner.record_graphs()
    recordings = runner._decodes[Changes.NOTHING]
    recorded: list[int] = []
    record = recordings.record
    recordings.record = lambda size: recorded.append(size) or record(size)
    for number in range(2):
        rows = {0: 1, 1: 1, 2: 1}
        started = [new(row, [5 + row + number]) for row in rows]
        result = step(runner, number, rows, *started)
        expected = [[int(model.table[5 + row + number].argmax())] for row in rows]
        assert result.tokens == expected
    assert recorded == [3]


def test_a_step_with_a_prompt_runs_as_it_is(model: TableModel) -> None:
    runner = make_runner(model, graph_sizes(ROWS))
    runner.record_graphs()
    step(runner, 0, {2: 2, 0: 1}, new(2, [5, 6]), new(0, [9]))
    assert model.batches[-1].shape.num_reqs == 2
    assert model.batches[-1].shape.max_query_len == 2


def test_more_new_tokens_than_the_inbox_holds(model: TableModel, monkeypatch) -> None:
    monkeypatch.setattr("hotshoe.runner.runner.INBOX_BYTES", 100)
    runner = make_runner(model, graph_sizes(ROWS))
    with pytest.raises(AssertionError, match="inbox"):
        runner.record_graphs()
    monkeypatch.setattr("hotshoe.runner.runner.INBOX_BYTES", 300)
    runner = make_runner(model, graph_sizes(ROWS))
    runner.record_graphs()
    long = new(0, [3] * 30, computed=29)
    result = step(runner, 0, {0: 1, 1: 1, 3: 1}, long, new(1, [4]), new(3, [6]))
    assert result.tokens == [[int(model.table[t].argmax())] for t in (3, 4, 6)]


class AttendingModel(TableModel):
    """Remembers what attention is called for: tokens of q and the step's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attended: list[tuple[int, AttentionMetadata]] = []

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        def attend(q: torch.Tensor, views: Sequence[CacheView]) -> torch.Tensor:
            self.attended.append((len(q), views[0].prepared))
            return q.flatten(1).clone()

        q = torch.tensor(self.ids[-1]).view(-1, 1, 1).float()
        if batch.between is None:
            attend(q, batch.views)
        else:
            assert batch.between(q, attend).tolist() == q.flatten(1).tolist()
        return super().forward(hidden, batch)


def test_a_step_with_a_prompt_runs_in_pieces() -> None:
    model = AttendingModel()
    runner = make_runner(model, graph_sizes(ROWS), (4, 8))
    runner.record_graphs()
    model.attended.clear()
    first = step(runner, 0, {2: 2, 0: 1, 1: 3}, new(2, [5, 6]), new(0, [9]), new(1, [7] * 5))
    expected = model.table.argmax(1).tolist()
    assert (first.rows, first.tokens) == ([2, 0], [[expected[6]], [expected[9]]])
    batch, [(num_tokens, attention)] = model.batches[-1], model.attended
    assert model.ids[-1][:6] == [5, 6, 9, 7, 7, 7]
    assert batch.positions.tolist() == [0, 1, 0, 0, 1, 2, 0, 0]
    assert batch.views[0].slot_mapping.tolist()[6:] == [99 * BLOCK] * 2
    assert batch.outputs_at is None
    assert (num_tokens, attention.num_reqs) == (6, 3)
    assert attention.query_start_loc.tolist() == [0, 2, 3, 6]
    assert attention.seq_lens.tolist() == [2, 1, 3]
    assert attention.slot_mapping.tolist() == batch.views[0].slot_mapping.tolist()[:6]
    assert attention.host_lens == ([2, 1, 3], [2, 1, 3])
    assert (attention.max_query_len, attention.max_seq_len) == (3, 3)
    second = step(runner, 1, {1: 2, 0: 1})
    assert (second.rows, second.tokens) == ([1, 0], [[expected[7]], [expected[expected[9]]]])
    assert len(model.batches[-1].positions) == 4
    assert model.attended[-1][0] == 3
    assert step(runner, 2, {3: 4}, new(3, [1] * 9)).rows == []  # inside its prompt: no logits


def test_what_no_pieces_hold_runs_as_it_is() -> None:
    """A longer step, one that predicts a prompt, one that brings more than the inbox holds."""
    model = AttendingModel()
    runner = make_runner(model, (), (4, 8))
    runner.record_graphs()
    asking = SamplingParams(temperature=0, prompt_logprobs=1)
    for number, (count, params) in enumerate(((9, GREEDY), (5, asking))):
        result = step(runner, number, {0: count}, new(0, [3] * count, params))
        assert result.tokens == [[int(model.table[3].argmax())]]
        assert len(model.batches[-1].positions) == count
        assert model.batches[-1].between is None


def test_pieces_of_a_step_that_the_inbox_does_not_hold(monkeypatch) -> None:
    monkeypatch.setattr("hotshoe.runner.runner.INBOX_BYTES", 400)
    model = AttendingModel()
    runner = make_runner(model, (), (4, 8))
    runner.record_graphs()
    result = step(runner, 0, {0: 3}, new(0, [3] * 31, computed=28))
    assert result.tokens == [[int(model.table[3].argmax())]]
    batch = model.batches[-1]
    assert batch.between is None
    assert len(batch.positions) == len(batch.views[0].slot_mapping) == 3


def test_a_decode_step_is_recorded_whole() -> None:
    model = AttendingModel()
    runner = make_runner(model, graph_sizes(ROWS), (4, 8))
    runner.record_graphs()
    step(runner, 0, {0: 1}, new(0, [3]))
    assert model.batches[-1].between is None
    assert model.batches[-1].shape.host_lens is None


def test_warming_up_touches_no_request(model: TableModel, runner: Runner) -> None:
    step(runner, 0, {1: 1}, new(1, [3]))
    runner.warm_up([7, 3])
    batch = model.batches[-1]
    assert batch.shape.seq_lens.tolist() == [7, 3]
    assert batch.outputs_at is None  # the most that any step can want
    assert set((batch.views[0].slot_mapping // BLOCK).tolist()) == {99}
    expected = model.table.argmax(1)
    assert step(runner, 1, {1: 1}).tokens == [[int(expected[expected[3]])]]


def chain(model: TableModel, token: int, length: int) -> list[int]:
    """Return the tokens that follow one greedily."""
    tokens = [token]
    for _ in range(length):
        tokens.append(int(model.table[tokens[-1]].argmax()))
    return tokens[1:]


def drafted(number: int, drafts: dict[int, list[int]], **more: list[int]) -> StepPlan:
    """A step in which each row verifies drafts behind its last token."""
    counts = [1 + len(proposed) for proposed in drafts.values()]
    listed = {row: proposed for row, proposed in drafts.items() if proposed}
    names = {"draft_rows": list(listed), "drafts": list(listed.values())}
    return StepPlan(number, rows=list(drafts), num_scheduled_tokens=counts, **names, **more)


@pytest.mark.parametrize("whole", [(), (4,), (4, 16)], ids=["called", "pieces", "whole"])
def test_drafts_are_accepted_up_to_the_first_wrong_one(whole: tuple[int, ...]) -> None:
    model = AttendingModel()
    runner = make_runner(model, whole, (8, 16) if whole else ())
    runner.record_graphs()
    right = {0: chain(model, 3, 9), 1: chain(model, 4, 9), 2: chain(model, 5, 9)}
    step(runner, 0, {0: 1, 1: 1, 2: 1}, new(0, [3]), new(1, [4]), new(2, [5]))
    wrong = (right[1][2] + 1) % VOCAB
    drafts = {0: right[0][1:4], 1: [right[1][1], wrong, right[1][3]], 2: []}
    result = runner.execute(drafted(1, drafts)).result()
    assert result.rows == [0, 1, 2]
    assert result.tokens == [right[0][1:5], right[1][1:3], right[2][1:2]]
    # What was rejected leaves no trace: rows go on behind their accepted tokens.
    following = drafted(
        2, {1: [], 0: [right[0][5]], 2: []}, accepted_rows=[1, 0], num_accepted=[1, 3]
    )
    result = runner.execute(following).result()
    assert result.rows == [1, 0, 2]
    assert result.tokens == [right[1][3:4], right[0][5:7], right[2][2:3]]
    assert model.batches[-1].positions[:4].tolist() == [3, 5, 6, 2]


def test_tokens_of_a_step_that_verifies_drafts_are_requests_of_a_recording(monkeypatch) -> None:
    """Unless they read too many keys together, or some token is not sampled after."""
    model = AttendingModel()
    runner = make_runner(model, (4, 8), (8, 16))
    runner.record_graphs()
    step(runner, 0, {2: 3, 1: 1}, new(2, [3, 4, 5]), new(1, [6]))
    drafts = {2: chain(model, 5, 3)[1:], 1: chain(model, 6, 2)[1:]}
    assert runner.execute(drafted(1, drafts)).result().rows == [2, 1]
    batch = model.batches[-1]
    assert batch.between is None
    seen = model.attended[-1][1]
    assert seen.max_query_len == 1
    assert seen.query_start_loc.tolist() == list(range(9))
    assert seen.seq_lens.tolist() == [4, 5, 6, 2, 3, 1, 1, 1]
    assert seen.block_table[:, 0].tolist() == [16] * 3 + [8] * 2 + [99] * 3
    assert seen.slot_mapping.tolist() == [67, 68, 69, 33, 34] + [99 * BLOCK] * 3
    monkeypatch.setattr("hotshoe.runner.verified.TOKENS", 1)
    monkeypatch.setattr("hotshoe.runner.verified.KEYS", 11)
    following = drafted(2, {1: [1]}, accepted_rows=[2, 1], num_accepted=[2, 1])
    assert runner.execute(following).result().rows == [1]
    assert model.attended[-1][1].max_query_len == 1
    following = drafted(3, {2: [1, 1]})
    assert runner.execute(following).result().rows == [2]
    assert model.attended[-1][1].max_query_len == 3
    mixed = drafted(4, {1: [1], 3: []})
    mixed.new_rows, mixed.num_scheduled_tokens = [new(3, [1, 2, 3])], [2, 2]
    assert runner.execute(mixed).result().rows == [1]
    assert model.attended[-1][1].max_query_len == 2


def test_attention_that_reads_shared_keys_once_is_told_which_they_are(monkeypatch) -> None:
    """In recordings of their own, however many keys there are; padding is of nobody."""
    monkeypatch.setattr("hotshoe.runner.verified.TOKENS", 1)
    monkeypatch.setattr("hotshoe.runner.verified.KEYS", 1)
    model = AttendingModel()
    runner = make_runner(model, (4,), (8, 16), shared=(4, 6, 8))
    runner.record_graphs()
    step(runner, 0, {2: 3, 1: 1}, new(2, [3, 4, 5]), new(1, [6]))
    right = {2: chain(model, 5, 4)[1:], 1: chain(model, 6, 3)[1:]}
    verifying = drafted(1, {row: tokens[:-1] for row, tokens in right.items()})
    result = runner.execute(verifying).result()
    assert result.recorded
    assert result.tokens == [right[2], right[1]]
    seen = model.attended[-1][1]
    assert seen.max_query_len == 1
    assert seen.spans.tolist() == [[0, 3]] * 3 + [[3, 5]] * 2 + [[5, 6]]
    assert seen.seq_lens.tolist() == [4, 5, 6, 2, 3, 1]
    following = drafted(2, {1: [], 2: []}, accepted_rows=[2, 1], num_accepted=[2, 1])
    result = runner.execute(following).result()
    assert (result.rows, result.recorded) == ([1, 2], False)
    assert model.attended[-1][1].spans is None, "nobody verifies drafts"


def test_log_probabilities_and_penalties_of_drafts_are_those_of_single_steps(
    model: TableModel,
) -> None:
    params = SamplingParams(
        temperature=0.8, logprobs=2, repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=3
    )
    alone = make_runner(model)
    tokens, found = [], []
    for number in range(6):
        fresh = [] if number else [new(1, [3], params)]
        result = step(alone, number, {1: 1}, *fresh)
        tokens += result.tokens[0]
        found += result.logprobs[1]
    runner = make_runner(model)
    step(runner, 0, {1: 1}, new(1, [3], params))
    result = runner.execute(drafted(1, {1: [*tokens[1:5], (tokens[5] + 1) % VOCAB]})).result()
    assert result.tokens == [tokens[1:6]]
    assert result.logprobs[1] == found[1:6]


def test_nothing_that_can_be_sampled_behind_drafts_comes_again(model: TableModel) -> None:
    runner = make_runner(model)
    chains = ((first, chain(model, first, 4)) for first in range(len(model.table)))
    first, right = next((f, c) for f, c in chains if len({f, *c}) == len([f, *c]))
    model.table[right[2]] = math.nan
    step(runner, 0, {0: 1}, new(0, [first]))
    result = runner.execute(drafted(1, {0: right[1:3]})).result()
    assert (result.tokens, result.failed) == ([right[1:3]], {})
    result = runner.execute(drafted(2, {0: []}, accepted_rows=[0], num_accepted=[1])).result()
    assert list(result.failed) == [0]
