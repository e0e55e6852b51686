"""Judges answers of the demo model against the held-out cases.

Used by the training script, by the tests and by anyone who wants to see whether an engine or a
quantized model still answers as the original does.  Reads no files and runs no model.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Case = Mapping[str, Any]

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def parse_json(text: str) -> Any:
    """Parse a JSON answer; return None when it is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def tool_calls(text: str) -> list[Any]:
    """Return the tool calls of an answer, each parsed, None where one is not valid JSON."""
    return [parse_json(body) for body in _CALL.findall(text)]


def same(left: Any, right: Any) -> bool:
    """Compare JSON values strictly: 1 is not True, and keys may come in any order."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _last_number(answer: str) -> int | None:
    numbers = re.findall(r"\d+", answer)
    return int(numbers[-1]) if numbers else None


def _addition(answer: str, expected: int) -> dict[str, bool]:
    return {"addition": _last_number(answer) == expected}


def _long_addition(answer: str, expected: int) -> dict[str, bool]:
    return {"long_addition": "</think>" in answer and _last_number(answer) == expected}


def _mentions(answer: str, expected: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", answer) is not None


def _fact(answer: str, expected: str) -> dict[str, bool]:
    return {"fact": _mentions(answer, expected)}


def _handwritten_fact(answer: str, expected: str) -> dict[str, bool]:
    return {"handwritten_fact": _mentions(answer, expected)}


def _tool_call(answer: str, expected: list[Any]) -> dict[str, bool]:
    return {"tool_call": same(tool_calls(answer), expected)}


def _handwritten_call(answer: str, expected: list[Any]) -> dict[str, bool]:
    return {"handwritten_call": same(tool_calls(answer), expected)}


def _json(answer: str, expected: Any) -> dict[str, bool]:
    parsed = parse_json(answer)
    return {"json_valid": parsed is not None, "json_exact": same(parsed, expected)}


_JUDGES: dict[str, Callable[[str, Any], dict[str, bool]]] = {
    "addition": _addition,
    "long_addition": _long_addition,
    "fact": _fact,
    "tool_call": _tool_call,
    "handwritten_fact": _handwritten_fact,
    "handwritten_call": _handwritten_call,
    "json": _json,
}


def score(case: Case, answer: str) -> dict[str, bool]:
    """Judge one answer.

    Args:
        case: A case of `heldout/cases.jsonl`: `kind`, `messages`, `tools`, `expected`.
        answer: The model's answer, without the end-of-turn mark.

    Returns:
        Measure name to whether the answer is right.  Kinds without a judge of their own ask for
        exactly the expected text.
    """
    judge = _JUDGES.get(case["kind"])
    if judge is None:
        return {case["kind"]: answer.strip() == case["expected"]}
    return judge(answer.strip(), case["expected"])
