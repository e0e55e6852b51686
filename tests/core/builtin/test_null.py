"""The null worker alone: each row counts upwards from its last token, once its prompt is done."""

from hypothesis import given
from hypothesis import strategies as st

from hotshoe.builtin.null import VOCAB_SIZE, NullPlatform
from hotshoe.config import EngineConfig
from hotshoe.platform import Available
from hotshoe.types import NewRow, SamplingParams, StepPlan


def new_row(row: int, token_ids: list[int], computed: int = 0) -> NewRow:
    return NewRow(row, token_ids, len(token_ids), computed, [[0]], SamplingParams(), 0)


def run(worker, new_rows: list[NewRow], counts: dict[int, int]) -> dict[int, int]:
    plan = StepPlan(0, new_rows, list(counts), list(counts.values()))
    result = worker.execute(plan).result()
    return {row: token for row, [token] in zip(result.rows, result.tokens, strict=True)}


def worker():
    return NullPlatform().create_worker(EngineConfig(max_num_seqs=4))


def test_never_chosen_by_itself() -> None:
    assert NullPlatform().probe() == Available(-1)


def test_a_prompt_in_chunks() -> None:
    null = worker()
    assert run(null, [new_row(1, [5, 6, 7])], {1: 2}) == {}
    assert run(null, [], {1: 1}) == {1: 8}
    assert run(null, [], {1: 1}) == {1: 9}


def test_a_resumed_row_goes_on_from_its_last_token() -> None:
    null = worker()
    run(null, [new_row(0, [1, 2])], {0: 2})
    assert run(null, [new_row(0, [5, 6, 7, 8], computed=2)], {0: 2}) == {0: 9}


def test_the_vocabulary_wraps() -> None:
    assert run(worker(), [new_row(0, [VOCAB_SIZE - 1])], {0: 1}) == {0: 0}


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=9), min_size=1, max_size=4))
def test_rows_do_not_disturb_each_other(prompts: list[list[int]]) -> None:
    null = worker()
    rows = dict(enumerate(prompts))
    first = run(
        null, [new_row(r, p) for r, p in rows.items()], {r: len(p) for r, p in rows.items()}
    )
    assert first == {row: prompt[-1] + 1 for row, prompt in rows.items()}
    assert run(null, [], dict.fromkeys(rows, 1)) == {row: t + 1 for row, t in first.items()}


def test_drafts_are_accepted_as_long_as_they_count_upwards() -> None:
    null = worker()
    run(null, [new_row(0, [5]), new_row(1, [8])], {0: 1, 1: 1})
    plan = StepPlan(1, [], [0, 1], [4, 2], draft_rows=[0, 1], drafts=[[7, 8, 3], [10]])
    result = null.execute(plan).result()
    assert (result.rows, result.tokens) == ([0, 1], [[7, 8, 9], [10, 11]])
    assert run(null, [], {0: 1, 1: 1}) == {0: 10, 1: 12}
