"""Look-ups against a search from the end, and options one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe_speculation.ngram import NgramFollower, NgramProposer


def looked_up(tokens: list[int], shortest: int, longest: int, limit: int) -> list[int]:
    """The definition, place by place: the longest end first, its last occurrence first."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                text = list(tokens)
                for place in range(limit):
                    text.append(text[start + length + place])
                return text[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    lengths=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    limit=st.integers(1, 6),
    step=st.integers(1, 7),
)
def test_the_longest_end_goes_on_as_it_did_last(
    tokens: list[int], lengths: tuple[int, int], limit: int, step: int
) -> None:
    shortest, longest = lengths[0], sum(lengths)
    follower = NgramFollower(shortest, longest)
    for end in range(1, len(tokens) + 1, step):
        known = tokens[:end]
        assert follower.propose(known, limit) == looked_up(known, shortest, longest, limit)


def test_long_sequences_are_remembered_whole() -> None:
    tokens = [*range(1000), *range(5000, 5600)]
    follower = NgramFollower(2, 4)
    assert follower.propose(tokens, 4) == []
    assert follower.propose([*tokens, 998, 999], 3) == [5000, 5001, 5002]


def test_options_have_defaults() -> None:
    follower = NgramProposer({}).follow()
    assert follower.propose([7, 8, 9, 7], 2) == [8, 9]
    assert NgramProposer({"prompt_lookup_min": 2}).follow().propose([7, 8, 9, 7], 2) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_lookup_mx": 4}, "no option 'prompt_lookup_mx'; did you mean prompt_lookup_max"),
        ({"prompt_lookup_max": 0}, "prompt_lookup_max must be a number from 1 to 64, not 0"),
        ({"prompt_lookup_max": 65}, "prompt_lookup_max must be a number from 1 to 64, not 65"),
        ({"prompt_lookup_min": "2"}, "prompt_lookup_min must be a number from 1 to 64, not '2'"),
        ({"prompt_lookup_min": True}, "prompt_lookup_min must be a number"),
        ({"prompt_lookup_min": 5}, r"prompt_lookup_min \(5\) exceeds prompt_lookup_max \(4\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NgramProposer(options)
