"""Drafts by suffix: whose text is followed, how far, and how much is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe_speculation.suffix import LEAD, Answers, SuffixProposer


def proposer(**options: float) -> SuffixProposer:
    return SuffixProposer({f"suffix_decoding_{name}": value for name, value in options.items()})


def test_a_repetition_goes_on_as_far_as_it_is_long() -> None:
    follower = proposer().follow()
    assert follower.propose([5], 8) == []
    assert follower.propose([5, 6, 5], 8) == [6]
    assert follower.propose([5, 6, 5, 6], 8) == [5, 6]
    assert follower.propose([5, 6] * 5, 6) == [5, 6, 5, 6, 5, 6]


def test_a_factor_proposes_more_behind_short_ends() -> None:
    assert proposer(max_spec_factor=3).follow().propose([5, 6, 7, 8, 5], 8) == [6, 7, 8]
    assert proposer(max_spec_factor=0.4).follow().propose([5, 6, 5, 6], 8) == []


def test_a_finished_answer_helps_the_next_sequence_from_its_first_token_on() -> None:
    ours = proposer()
    ours.follow().learn([1, 2, 3, *range(10, 20)], 3)
    assert ours.follow().propose([99, 2, 3], 8) == [10, 11]
    assert ours.follow().propose([7, 14, 15, 16, 17], 8) == [18, 19]
    assert proposer(max_cached_tokens=0).follow().propose([99, 2, 3], 8) == []


def test_nothing_is_learned_of_a_prompt_but_its_end() -> None:
    ours = proposer()
    ours.follow().learn(list(range(50)), 50)
    assert ours.answers.text.tolist() == [-1]
    ours.follow().learn([*range(50), 70], 50)
    assert ours.answers.text.tolist() == [*range(50 - LEAD, 50), 70, -1, -1]


def test_the_longer_end_counts_and_of_equal_ones_the_sequences_own() -> None:
    ours = proposer(max_spec_factor=1)
    ours.follow().learn([0, 1, 2, 3, 40], 1)
    assert ours.follow().propose([1, 2, 3, 50, 9, 1, 2, 3], 1) == [50]
    assert ours.follow().propose([2, 3, 50, 9, 1, 2, 3], 1) == [40]


def test_most_texts_decide_and_drafts_stop_where_too_few_agree() -> None:
    def answer(shares: list[int], probability: float) -> list[int]:
        ours = proposer(min_token_prob=probability, max_spec_factor=4)
        for token in shares:
            ours.follow().learn([1, 2, 3, token, token], 1)
        return ours.follow().propose([9, 2, 3], 2)

    assert answer([5, 6, 6, 7], 0.5) == [6, 6]
    assert answer([5, 6, 6, 7], 0.6) == []
    assert answer([5, 6, 6, 5], 0.1) == [5, 5]  # the latest of equally many


@given(
    answers=st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=30),
    capacity=st.integers(0, 40),
)
def test_the_ring_keeps_the_latest_answers_whole(answers: list[list[int]], capacity: int) -> None:
    ring = Answers(capacity)
    for answer in answers:
        ring.add(answer)
        text = ring.text.tolist()
        assert len(text) <= capacity + 1
        assert text[-1] == -1
        kept = answer[max(0, len(answer) + 1 - capacity) :]
        if kept and capacity:
            assert any(text[i : i + len(kept) + 1] == [*kept, -1] for i in range(len(text)))


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    others=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=6),
    limit=st.integers(1, 8),
)
def test_drafts_are_tokens_within_the_limit_and_follow_a_known_text(
    tokens: list[int], others: list[list[int]], limit: int
) -> None:
    ours = proposer(max_cached_tokens=30)
    for other in others:
        ours.follow().learn(other, 0)
    drafts = ours.follow().propose(tokens, limit)
    assert len(drafts) <= limit
    assert all(0 <= token <= 3 for token in drafts)
    if drafts:
        pairs = [text[i : i + 2] for text in (tokens, *others) for i in range(len(text) - 1)]
        assert [tokens[-1], drafts[0]] in pairs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tree_depht": 4}, "did you mean suffix_decoding_max_tree_depth"),
        ({"max_tree_depth": 65}, "max_tree_depth must be a number from 1 to 64, not 65"),
        ({"max_spec_factor": 0}, "max_spec_factor must be above 0 and at most 64, not 0"),
        ({"min_token_prob": 1.5}, "min_token_prob must be above 0 and at most 1, not 1.5"),
        ({"min_token_prob": float("nan")}, "min_token_prob must be above 0"),
        ({"max_spec_factor": True}, "max_spec_factor must be above 0"),
        ({"max_cached_tokens": 2**22 + 1}, "max_cached_tokens must be a number from 0 to"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        proposer(**options)
