"""Stop strings: the streamed result equals that of the whole text, however it is cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.text.stop import StopAutomaton, StopMatcher

LETTERS = st.text(alphabet="ab\n", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=5)


def oracle(text, stops, include, allowed):
    """Search ever longer prefixes for a stop string at their end."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found and allowed[end - 1]:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def stream(chunks, stops, include):
    """Push (text, may_stop) chunks; check on the way that nothing certain is held back."""
    matcher = StopMatcher(StopAutomaton(stops), include)
    out, seen = "", ""
    for chunk, may_stop in chunks:
        seen += chunk
        out += matcher.push(chunk, may_stop)
        if matcher.matched is not None:
            return out, matcher.matched
        held = seen[len(out) :]
        assert seen.startswith(out)
        begins = [len(p) for s in stops for n in range(len(s)) if seen.endswith(p := s[: n + 1])]
        assert len(held) == max(begins, default=0)
    return out + matcher.flush(), None


def cut(text, bounds):
    bounds = [0, *sorted(bounds), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@settings(max_examples=400, deadline=None)
@given(text=LETTERS, stops=STOPS, include=st.booleans(), data=st.data())
def test_any_cut_gives_the_result_of_the_whole(text, stops, include, data):
    bounds = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    expected = oracle(text, stops, include, [True] * len(text))
    for chunks in (cut(text, bounds), cut(text, range(len(text))), [text]):
        assert stream([(chunk, True) for chunk in chunks], stops, include) == expected


@settings(max_examples=400, deadline=None)
@given(text=LETTERS, stops=STOPS, include=st.booleans(), data=st.data())
def test_stops_that_complete_too_early_are_passed_over(text, stops, include, data):
    bounds = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    chunks = cut(text, bounds)
    first = data.draw(st.integers(0, len(chunks)))
    flagged = [(chunk, i >= first) for i, chunk in enumerate(chunks)]
    allowed = [may_stop for chunk, may_stop in flagged for _ in chunk]
    assert stream(flagged, stops, include) == oracle(text, stops, include, allowed)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("xabcdy", ["abcd", "bc"], ("xa", "bc")),  # completes first
        ("xabcy", ["bc", "abc", "c"], ("x", "abc")),  # complete together: the longest
        ("aaab", ["aab"], ("a", "aab")),
        ("日本語です", ["語で"], ("日本", "語で")),
        ("no match", ["match!"], ("no match", None)),
        ("", ["a"], ("", None)),
        ("twice", ["ic", "ic"], ("tw", "ic")),
    ],
)
def test_examples(text, stops, expected):
    assert stream([(char, True) for char in text], stops, False) == expected


def test_holdback_is_bounded_and_each_character_is_read_once():
    steps = 0

    class Counting(StopAutomaton):
        __slots__ = ()

        def step(self, state, char):
            nonlocal steps
            steps += 1
            return super().step(state, char)

    automaton = Counting(["aaaaaaaab", "\n\n"])
    steps = 0
    matcher = StopMatcher(automaton)
    released = 0
    for n in range(1, 5001):
        released += len(matcher.push("a"))
        assert n - released <= 8
    assert steps == 5000
