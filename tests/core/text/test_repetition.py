"""Where a text ends that repeats itself, against a plain look at its last tokens."""

import random

import pytest

from hotshoe.errors import RequestError
from hotshoe.text.repetition import RepetitionMatcher, check_repetition
from hotshoe.types import FinishReason, TokenOutput


def repeats(tokens: list[int], wanted: tuple[int, int, int]) -> bool:
    longest, shortest, count = wanted
    for size in range(shortest, longest + 1):
        tail = tokens[-size * count :]
        if len(tail) == size * count and tail == tail[:size] * count:
            return True
    return False


@pytest.mark.parametrize("seed", range(30))
def test_it_ends_with_the_first_token_that_makes_a_pattern_come_so_often(seed: int) -> None:
    rng = random.Random(seed)
    longest = rng.randint(1, 6)
    wanted = (longest, rng.randint(1, longest), rng.randint(2, 4))
    min_tokens = rng.choice([0, 0, 20])
    tokens = rng.choices(range(rng.randint(2, 4)), k=200)
    lengths = range(1, 201)
    ends = (n for n in lengths if n >= min_tokens and repeats(tokens[:n], wanted))
    expected = next(ends, 200)
    matcher, found, rest = RepetitionMatcher(wanted, min_tokens), 0, list(tokens)
    while rest and found < expected:
        step = [rest.pop(0) for _ in range(min(rng.randint(1, 5), len(rest)))]
        output = matcher.cut(TokenOutput("r", step))
        found += len(output.token_ids)
        if output.finish_reason is not None:
            assert output.finish_reason is FinishReason.REPETITION
            break
    assert found == expected


def test_a_text_that_ends_anyway_keeps_its_reason() -> None:
    matcher = RepetitionMatcher((1, 1, 2), 0)
    output = TokenOutput("r", [5, 5], finish_reason=FinishReason.STOP, stop_token_id=5)
    assert matcher.cut(output) is output
    matcher = RepetitionMatcher((1, 1, 2), 0)
    output = matcher.cut(TokenOutput("r", [5, 5, 7], finish_reason=FinishReason.STOP))
    assert (output.token_ids, output.finish_reason) == ([5, 5], FinishReason.REPETITION)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ((0, 1, 2), ".max_pattern_size"),
        ((513, 1, 2), ".max_pattern_size"),
        ((True, 1, 2), ".max_pattern_size"),
        ((3, 4, 2), ".min_pattern_size"),
        ((3, 0, 2), ".min_pattern_size"),
        ((3, 1, 1), ".min_count"),
        ((3, 1, 2.5), ".min_count"),
        ((3, 1), " is three numbers"),
        (3, " is three numbers"),
    ],
)
def test_bounds(wanted, name: str) -> None:
    with pytest.raises(RequestError, match=f"repetition_detection{name}") as found:
        check_repetition(wanted)
    assert found.value.field == "repetition_detection"
