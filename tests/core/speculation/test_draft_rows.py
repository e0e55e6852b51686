"""A draft model's plans, checked by a worker that keeps books of its cache, token by token."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.kv.sequence import StoredTokens
from hotshoe.runner.rows import Rows
from hotshoe.scheduler import Request
from hotshoe.speculation.draft_rows import DraftLimits, DraftRows
from hotshoe.speculation.proposer import Wanted
from hotshoe.types import FinishedStep, SamplingParams, StepPlan, StepResult
from hotshoe.types.cache import CacheGroup, CacheSpec

BLOCK, LENGTH, SEQS, BUDGET, VOCAB = 4, 48, 4, 8, 50
KINDS: tuple[Literal["full"], Literal["state"]] = ("full", "state")


def drawn(tokens: list[int]) -> int:
    """What the draft model draws behind these tokens."""
    return (sum(tokens[-3:]) * 7 + len(tokens)) % VOCAB


class Books:
    """Computes nothing, and asserts that what a query reads holds what it should."""

    def __init__(self, num_groups: int, window: int | None = None) -> None:
        self.rows = Rows(SEQS, LENGTH, BLOCK, num_groups)
        self.tokens = np.zeros(SEQS * self.rows.width, np.int64)
        self.cache: list[dict[int, tuple[int, int, int]]] = [{} for _ in range(num_groups)]
        self.windows = [None, window][:num_groups]
        self.states: dict[int, list[int]] | None = None  # of the last group, if it has them
        self.most_tokens = self.steps = 0
        self.failing: set[int] = set()

    def execute(self, plan: StepPlan) -> FinishedStep:
        step = self.rows.advance(plan)
        self.steps += 1
        self.most_tokens = max(self.most_tokens, plan.num_tokens)
        self.tokens[step.tokens.index] = step.tokens.values
        owner = np.repeat(step.rows, np.diff(step.query_start_loc))
        for i, (row, position) in enumerate(zip(owner, step.positions, strict=True)):
            token = int(self.tokens[step.token_index[i]])
            for group, cache in enumerate(self.cache):
                cache[int(step.slot_mapping[group, i])] = (int(row), int(position), token)
        if self.states is not None:
            self.advance_states(step.rows, step.query_start_loc, step.seq_lens)
        result = StepResult(plan.step_id, [], [])
        for row, length in zip(step.sample_rows, step.sample_lens, strict=True):
            self.draw(int(row), int(length), result)
        return FinishedStep(result)

    def advance_states(self, rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Let each row's state take the tokens of a step; it has to be the one before these."""
        assert self.states is not None
        for row, count, length in zip(rows, np.diff(starts), lengths, strict=True):
            first = row * self.rows.width
            block = int(self.rows.block_table[-1, row, 0])
            before = self.states.get(block) if length > count else []
            assert before == self.tokens[first : first + length - count].tolist()
            self.states[block] = self.tokens[first : first + length].tolist()

    def copy_blocks(self, copies: dict[int, tuple[list[int], list[int]]]) -> None:
        assert self.states is not None
        [(sources, targets)] = copies.values()
        self.states |= {new: self.states[old] for old, new in zip(sources, targets, strict=True)}

    def draw(self, row: int, length: int, result: StepResult) -> None:
        start = row * self.rows.width
        tokens = self.tokens[start : start + length].tolist()
        for group, cache in enumerate(self.cache):
            window = self.windows[group]
            for position in range(0 if window is None else max(length - window, 0), length):
                block = int(self.rows.block_table[group, row, position // BLOCK])
                held = cache[block * BLOCK + position % BLOCK]
                assert held == (row, position, tokens[position])
        token = drawn(tokens)
        self.tokens[start + length] = token
        if row in self.failing:
            result.failed[row] = "it fails"
        else:
            result.rows.append(row)
            result.tokens.append([token])


@dataclass
class Case:
    """Rows of a draft model over books."""

    books: Books
    rows: DraftRows


def case_of_states(num_blocks: int = 64) -> Case:
    """Keys of all tokens, and a state of each sequence with one more for each row."""
    books = Books(2)
    books.cache, books.windows, books.states = books.cache[:1], [None], {}
    limits = DraftLimits(SEQS, LENGTH, BUDGET, (VOCAB, VOCAB))
    groups = [CacheGroup(CacheSpec(kind, BLOCK, ()), (i,), i) for i, kind in enumerate(KINDS)]
    pools = [num_blocks, 2 * SEQS]
    return Case(books, DraftRows(books, limits, pools, BLOCK, groups))  # type: ignore[arg-type]


def case(num_blocks: int = 64, window: int | None = None, vocab: tuple[int, int] = (VOCAB, VOCAB)):
    books = Books(1 if window is None else 2, window)
    limits = DraftLimits(SEQS, LENGTH, BUDGET, vocab)
    groups: tuple[CacheGroup, ...] = ()
    if window is not None:
        full, narrow = CacheSpec("full", BLOCK, ()), CacheSpec("window", BLOCK, (), window=window)
        groups = (CacheGroup(full, (0,), 0), CacheGroup(narrow, (1,), 0))
    return Case(books, DraftRows(books, limits, [num_blocks], BLOCK, groups))  # type: ignore[arg-type]


def request(name: str, tokens: list[int], row: int = 0) -> Request:
    made = Request(name, tokens, SamplingParams(max_tokens=LENGTH))
    made.row, made.max_total_tokens = row, LENGTH
    return made


def expected(tokens: list[int], limit: int) -> list[int]:
    grown = list(tokens)
    for _ in range(min(limit, LENGTH - 1 - len(tokens))):
        grown.append(drawn(grown))
    return grown[len(tokens) :]


def test_a_long_prompt_is_caught_up_with_in_bounded_steps() -> None:
    own = case()
    prompt = request("a", list(range(20)))
    assert own.rows.propose([Wanted(prompt, 3)]) == [[]]
    prompt.token_ids.append(9)
    assert own.rows.propose([Wanted(prompt, 3)]) == [[]]
    prompt.token_ids.append(9)
    assert own.rows.propose([Wanted(prompt, 3)]) == [expected(prompt.token_ids, 3)]
    assert own.books.most_tokens == BUDGET


def test_windows_bound_what_a_step_catches_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotshoe.kv.kinds.WINDOW_STEP", BUDGET // 2)
    own = case(window=6)
    assert own.rows.propose([Wanted(request("a", list(range(20))), 3)]) == [[]]
    assert own.books.most_tokens == BUDGET // 2


def test_a_sequence_that_is_up_to_date_costs_one_step_for_each_draft() -> None:
    own = case()
    one = request("a", [1, 2])
    for accepted in (2, 0, 1):
        drafts = expected(one.token_ids, 3)
        before = own.books.steps
        assert own.rows.propose([Wanted(one, 3)]) == [drafts]
        assert own.books.steps - before == 3
        one.token_ids += [*drafts[:accepted], (drafts[accepted] + 1) % VOCAB]


def test_states_go_back_and_take_what_was_accepted() -> None:
    own = case_of_states()
    one = request("a", [1, 2])
    for accepted in (2, 0, 3, 1):
        drafts = expected(one.token_ids, 3)
        before = own.books.steps
        assert own.rows.propose([Wanted(one, 3)]) == [drafts]
        assert own.books.steps - before == 3
        one.token_ids += [*drafts[:accepted], 7]
    again = expected(one.token_ids, 1)
    assert own.rows.propose([Wanted(one, 1)]) == [again]  # which nothing has to go back from
    assert own.rows.propose([Wanted(one, 1)]) == [[]]  # behind no new token it begins anew
    assert own.rows.propose([Wanted(one, 1)]) == [again]
    one.token_ids.append(7)
    assert own.rows.propose([Wanted(one, 2)]) == [expected(one.token_ids, 2)]


def test_without_room_there_are_no_drafts_and_others_go_on() -> None:
    own = case(num_blocks=5)
    first, second = request("a", [1] * 7, 0), request("b", [2] * 7, 1)
    assert own.rows.propose([Wanted(first, 2)]) == [expected(first.token_ids, 2)]
    first.token_ids += [3] * 2  # needs a third block
    found = own.rows.propose([Wanted(second, 2), Wanted(first, 2)])
    first.token_ids += [3] * 6
    second.token_ids += [3] * 6
    found = own.rows.propose([Wanted(first, 1), Wanted(second, 1)])
    assert [] in found
    own.rows.discard("a")
    own.rows.propose([Wanted(second, 2)])
    second.token_ids.append(4)
    assert own.rows.propose([Wanted(second, 2)]) == [expected(second.token_ids, 2)]
    own.rows.discard("b")
    own.rows.cache.check_held([])


def test_a_sequence_for_which_nothing_can_be_drawn_is_begun_anew() -> None:
    own = case()
    one, other = request("a", [1, 2], 0), request("b", [3, 4], 1)
    own.books.failing = {SEQS - 1}
    found = own.rows.propose([Wanted(one, 2), Wanted(other, 2)])
    assert found == [[], expected(other.token_ids, 2)]
    own.books.failing = set()
    assert own.rows.propose([Wanted(one, 2)]) == [expected(one.token_ids, 2)]


def test_tokens_beyond_the_smaller_vocabulary_are_neither_read_nor_proposed() -> None:
    unread = case(vocab=(VOCAB, VOCAB + 9))
    assert unread.rows.propose([Wanted(request("a", [1, VOCAB + 3]), 3)]) == [[]]
    one = request("a", [1, 2])
    drafts = expected(one.token_ids, 6)
    largest = max(drafts)
    cut = case(vocab=(VOCAB, largest))
    assert cut.rows.propose([Wanted(one, 6)]) == [drafts[: drafts.index(largest)]]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([None, 6, "states"]), st.integers(12, 64))
def test_drafts_are_what_the_model_would_say_whatever_became_of_the_last_ones(
    data: st.DataObject, window: int | Literal["states"] | None, num_blocks: int
) -> None:
    own = case_of_states(num_blocks) if window == "states" else case(num_blocks, window)
    running: dict[str, Request] = {}
    for number in range(data.draw(st.integers(1, 25))):
        free = sorted(set(range(SEQS)) - {r.row for r in running.values() if r.row is not None})
        if free and data.draw(st.booleans()):
            length = data.draw(st.integers(1, 20))
            running[str(number)] = request(str(number), [length] * length, free[0])
        elif running and data.draw(st.integers(0, 5)) == 0:
            gone = data.draw(st.sampled_from(sorted(running)))
            own.rows.discard(gone)
            del running[gone]
        wanted = []
        for name in data.draw(st.permutations(sorted(running))):
            one = running[name]
            if one.row is None:
                one.row = next(iter(set(range(SEQS)) - {r.row for r in running.values()}), None)
            elif data.draw(st.integers(0, 9)) == 0:
                one.row = None  # preempted
            if one.row is not None and data.draw(st.booleans()):
                wanted.append(Wanted(one, data.draw(st.integers(1, 5))))
        for ask, drafts in zip(wanted, own.rows.propose(wanted), strict=True):
            tokens = ask.request.token_ids
            assert drafts in ([], expected(tokens, ask.limit))
            if not drafts and num_blocks == 64 and window is None and len(tokens) < LENGTH - 1:
                missing = own.rows._rows[ask.request.request_id]
                assert missing.num_computed < len(tokens)  # it is behind, and nothing else
            right = data.draw(st.integers(0, len(drafts)))
            tokens += drafts[:right] + data.draw(
                st.lists(st.integers(0, 49), min_size=1, max_size=3)
            )
            if len(tokens) >= LENGTH - 1:
                own.rows.discard(ask.request.request_id)
                del running[ask.request.request_id]
        held = [place.held for place in own.rows._rows.values()]
        spares = [StoredTokens([], tables=[[], bundles]) for bundles in own.rows._spares if bundles]
        own.rows.cache.check_held([*held, *spares])
        rows = [place.row for place in own.rows._rows.values()]
        assert sorted([*rows, *own.rows._free]) == list(range(SEQS))
    assert own.books.most_tokens <= BUDGET
