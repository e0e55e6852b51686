"""The judge: right answers pass, near misses fail."""

import pytest

from hotshoe_demo import scoring

CALL = [{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]


def judged(kind: str, expected: object, answer: str) -> dict[str, bool]:
    return scoring.score({"kind": kind, "expected": expected}, answer)


@pytest.mark.parametrize(
    ("answer", "right"),
    [("37 + 48 = 85", True), ("85", True), ("85.", True), ("37 + 48 = 84", False), ("", False)],
)
def test_addition_takes_the_last_number(answer: str, right: bool) -> None:
    assert judged("addition", 85, answer) == {"addition": right}


def test_long_addition_needs_the_thought_to_be_closed() -> None:
    assert judged("long_addition", 85, "5\n</think>\n\n37 + 48 = 85") == {"long_addition": True}
    assert judged("long_addition", 85, "37 + 48 = 85") == {"long_addition": False}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Anna lives in Rome.", True),
        ("Rome", True),
        ("Anna lives in Romeville.", False),
        ("Anna lives in rome.", False),
        ("I do not know.", False),
    ],
)
def test_a_fact_is_mentioned_as_a_whole_word(answer: str, right: bool) -> None:
    assert judged("fact", "Rome", answer) == {"fact": right}
    assert judged("handwritten_fact", "Rome", answer) == {"handwritten_fact": right}


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}', True),
        ('{"arguments": {"days": 2, "city": "Paris"}, "name": "get_weather"}', True),
        ('{"name": "get_weather", "arguments": {"city": "Paris", "days": "2"}}', False),
        ('{"name": "get_weather", "arguments": {"city": "Paris"}}', False),
        ('{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}', False),
    ],
)
def test_a_tool_call_is_exact(body: str, right: bool) -> None:
    answer = f"<tool_call>\n{body}\n</tool_call>"
    assert judged("tool_call", CALL, answer) == {"tool_call": right}
    assert judged("handwritten_call", CALL, answer) == {"handwritten_call": right}
    assert judged("tool_call", CALL, f"{answer}\n{answer}") == {"tool_call": False}
    assert judged("tool_call", CALL, body) == {"tool_call": False}


@pytest.mark.parametrize(
    ("answer", "valid", "exact"),
    [
        ('{"a": 1}', True, True),
        ('{"a": true}', True, False),
        ('{"a": 1.0}', True, False),
        ('{"a": 1', False, False),
        ('Here: {"a": 1}', False, False),
    ],
)
def test_json_is_valid_and_exact(answer: str, valid: bool, exact: bool) -> None:
    assert judged("json", {"a": 1}, answer) == {"json_valid": valid, "json_exact": exact}


def test_other_kinds_ask_for_the_exact_text() -> None:
    assert judged("repeat", "one two", " one two\n") == {"repeat": True}
    assert judged("repeat", "one two", "one  two") == {"repeat": False}
