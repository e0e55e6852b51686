"""A step's arrays against a per-token loop, over random plans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.runner.rows import Rows, StepInputs
from hotshoe.types import NewRow, SamplingParams, StepPlan

BLOCK_SIZE, MAX_LEN, NUM_ROWS = 4, 40, 5
#: The block table as a device keeps it, from what each step changes.
DEVICE_TABLE = np.zeros((1, NUM_ROWS + 1, -(-(MAX_LEN + 1) // BLOCK_SIZE)), np.int32)


def new_row(row: int, length: int, computed: int, blocks: list[int]) -> NewRow:
    return NewRow(row, list(range(length)), length, computed, [blocks], SamplingParams(), 0)


def check(
    inputs: StepInputs, starts: list[int], counts: list[int], tables: list[list[int]]
) -> None:
    table = DEVICE_TABLE
    table.reshape(-1)[inputs.blocks.index] = inputs.blocks.values
    token = 0
    for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
        assert inputs.query_start_loc[i] == token
        assert inputs.seq_lens[i] == start + count
        for position in range(start, start + count):
            assert inputs.positions[token] == position
            row, column = divmod(int(inputs.token_index[token]), MAX_LEN + 1)
            assert (row, column) == (inputs.rows[i], position)
            block = tables[i][position // BLOCK_SIZE]
            assert inputs.slot_mapping[0, token] == block * BLOCK_SIZE + position % BLOCK_SIZE
            assert table[0, inputs.rows[i], position // BLOCK_SIZE] == block
            token += 1
    assert inputs.query_start_loc[-1] == token


@given(
    lengths=st.lists(st.integers(2, MAX_LEN - 4), min_size=1, max_size=NUM_ROWS),
    fractions=st.lists(st.floats(0, 0.9), min_size=NUM_ROWS, max_size=NUM_ROWS),
    seed=st.integers(0, 2**31),
)
def test_prompt_then_decode(lengths: list[int], fractions: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    order = rng.permutation(NUM_ROWS)[: len(lengths)].tolist()
    tables = [rng.permutation(100)[:12].tolist() for _ in lengths]
    cached = [int(f * n) for f, n in zip(fractions, lengths, strict=False)]
    plan = StepPlan(0)
    plan.new_rows = [
        new_row(r, n, c, t[: -(-n // BLOCK_SIZE)])
        for r, n, c, t in zip(order, lengths, cached, tables, strict=True)
    ]
    plan.rows = order
    plan.num_scheduled_tokens = [n - c for n, c in zip(lengths, cached, strict=True)]
    inputs = rows.advance(plan)
    check(inputs, cached, plan.num_scheduled_tokens, tables)
    assert inputs.sample_rows.tolist() == order
    assert inputs.sample_lens.tolist() == lengths
    expected = [
        r * (MAX_LEN + 1) + i for r, n in zip(order, lengths, strict=True) for i in range(n)
    ]
    assert inputs.tokens.index.tolist() == expected
    assert inputs.tokens.values.tolist() == [i for n in lengths for i in range(n)]

    decode = StepPlan(1, rows=order, num_scheduled_tokens=[1] * len(order))
    for row, length, table in zip(order, lengths, tables, strict=True):
        if length % BLOCK_SIZE == 0:
            decode.block_groups.append(0)
            decode.block_rows.append(row)
            decode.block_cols.append(length // BLOCK_SIZE)
            decode.block_ids.append(table[length // BLOCK_SIZE])
    inputs = rows.advance(decode)
    check(inputs, lengths, [1] * len(order), tables)
    assert inputs.sample_at.tolist() == list(range(len(order)))
    assert inputs.sample_lens.tolist() == [n + 1 for n in lengths]


def test_a_chunk_inside_the_prompt_samples_nothing() -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    plan = StepPlan(0, [new_row(2, 10, 0, [7, 3, 9])], [2], [6])
    assert rows.advance(plan).sample_rows.size == 0
    inputs = rows.advance(StepPlan(1, [], [2], [4]))
    assert inputs.sample_rows.tolist() == [2]
    assert inputs.sample_at.tolist() == [3]


def test_a_row_starts_anew() -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    rows.advance(StepPlan(0, [new_row(0, 9, 0, [1, 2, 3])], [0], [9]))
    inputs = rows.advance(StepPlan(1, [new_row(0, 5, 4, [8, 6])], [0], [1]))
    assert inputs.slot_mapping.tolist() == [[6 * BLOCK_SIZE]]
    assert inputs.sample_lens.tolist() == [5]


def test_padding_adds_rows_that_sample_nothing() -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    inputs = rows.advance(StepPlan(0, [new_row(2, 3, 2, [7])], [2], [1]))
    assert inputs.decodes_only
    padded = inputs.padded(4, NUM_ROWS, np.array([88], np.int32))
    assert padded.rows.tolist() == [2, NUM_ROWS, NUM_ROWS, NUM_ROWS]
    assert padded.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert padded.seq_lens.tolist() == [3, 1, 1, 1]
    assert padded.slot_mapping.tolist() == [[7 * BLOCK_SIZE + 2, 88, 88, 88]]
    assert padded.sample_at.tolist() == [0]
    assert not padded.decodes_only


@given(
    num_tokens=st.lists(st.integers(1, 8), min_size=1, max_size=NUM_ROWS),
    extra=st.integers(0, 70),
)
def test_tokens_of_no_request_come_last(num_tokens: list[int], extra: int) -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    fresh = [new_row(row, n, 0, [2 * row, 2 * row + 1]) for row, n in enumerate(num_tokens)]
    inputs = rows.advance(StepPlan(0, fresh, list(range(len(fresh))), num_tokens))
    total = sum(num_tokens)
    padded = inputs.padded_tokens(total + extra, np.array([88], np.int32))
    assert padded.num_tokens == inputs.num_tokens == total
    for name in ("positions", "token_index", "slot_mapping"):
        mine, whole = (np.atleast_2d(getattr(x, name))[0] for x in (inputs, padded))
        assert whole.dtype == mine.dtype
        assert whole[:total].tolist() == mine.tolist()
        assert set(whole[total:].tolist()) <= {88 if name == "slot_mapping" else 0}
        assert len(whole) == total + extra
    for name in ("rows", "query_start_loc", "seq_lens", "sample_at", "sample_rows"):
        assert getattr(padded, name) is getattr(inputs, name)


def test_rows_count_drafts_only_when_they_are_accepted() -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    rows.advance(StepPlan(0, [new_row(0, 3, 0, [5, 6]), new_row(4, 6, 0, [7, 8])], [0, 4], [3, 4]))
    plan = StepPlan(1, [], [4, 0], [2, 3], draft_rows=[0], drafts=[[21, 22]])
    inputs = rows.advance(plan)
    assert inputs.positions.tolist() == [4, 5, 3, 4, 5]
    assert inputs.sample_rows.tolist() == [4, 0, 0, 0]
    assert inputs.sample_at.tolist() == [1, 2, 3, 4]
    assert inputs.sample_lens.tolist() == [6, 4, 5, 6]
    width = MAX_LEN + 1
    assert (inputs.tokens.index.tolist(), inputs.tokens.values.tolist()) == ([4, 5], [21, 22])
    assert inputs.slot_mapping[0].tolist() == [32, 33, 23, 24, 25]
    assert not inputs.decodes_only
    plan = StepPlan(2, [], [0, 4], [1, 2], accepted_rows=[0], num_accepted=[1])
    plan.draft_rows, plan.drafts = [4], [[23]]
    inputs = rows.advance(plan)
    assert inputs.positions.tolist() == [5, 6, 7]
    assert inputs.sample_lens.tolist() == [6, 7, 8]
    assert inputs.tokens.index.tolist() == [4 * width + 7]


def test_a_chunk_that_ends_before_the_last_token_samples_nothing_beside_drafts() -> None:
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    fresh = [new_row(0, 3, 0, [5, 6]), new_row(1, 6, 0, [7, 8])]
    rows.advance(StepPlan(0, fresh, [0, 1], [3, 2]))
    plan = StepPlan(1, [], [0, 1], [2, 3], draft_rows=[0], drafts=[[9]])
    assert rows.advance(plan).sample_rows.tolist() == [0, 0]
    assert rows.advance(StepPlan(2, [], [1], [1])).sample_rows.tolist() == [1]


def test_tokens_that_the_plan_knows_come_to_their_places() -> None:
    """As a stage that does not sample learns them: each behind the row's other tokens."""
    rows = Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE)
    first = StepPlan(0, [new_row(1, 3, 0, [0]), new_row(3, 5, 0, [1, 2])], [1, 3], [3, 5])
    rows.advance(first)
    known = StepPlan(1, [], [3, 1], [1, 1], known_rows=[3, 1], known_tokens=[70, 71])
    puts = rows.advance(known).tokens
    assert puts.index.tolist() == [3 * (MAX_LEN + 1) + 5, MAX_LEN + 1 + 3]
    assert puts.values.tolist() == [70, 71]
    drafting = StepPlan(2, [], [1], [3], draft_rows=[1], drafts=[[8, 9]])
    drafting.known_rows, drafting.known_tokens = [1], [72]
    puts = rows.advance(drafting).tokens
    assert [index - (MAX_LEN + 1) for index in puts.index.tolist()] == [4, 5, 6]
    assert puts.values.tolist() == [72, 8, 9]


def test_rows_tell_states_of_drafts_alone_that_are_behind() -> None:
    plain, behind = (Rows(NUM_ROWS, MAX_LEN, BLOCK_SIZE, lags=lags) for lags in (False, True))
    steps = [
        StepPlan(0, [new_row(r, 5, 0, [r, r + 5]) for r in (0, 2)], [0, 2], [5, 5]),
        StepPlan(1, rows=[0, 2], num_scheduled_tokens=[1, 3], draft_rows=[2], drafts=[[7, 8]]),
        StepPlan(2, rows=[0, 2], num_scheduled_tokens=[1, 1], accepted_rows=[2], num_accepted=[1]),
        StepPlan(3, rows=[0, 2], num_scheduled_tokens=[1, 1]),
    ]
    found = [behind.advance(plan) for plan in steps]
    assert [inputs.drafts for inputs in found] == [None, ([0, 0], [0, 2]), ([0, 1], [0, 0]), None]
    assert [inputs.decodes_only for inputs in found] == [False, False, False, True]
    others = [plain.advance(plan) for plan in steps]
    assert [inputs.drafts for inputs in others] == [None] * 4
    assert others[2].decodes_only
