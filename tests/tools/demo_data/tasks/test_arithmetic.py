"""Sums are right, and held-out pairs are never trained."""

import re

from demo_data.tasks import arithmetic
from demo_data.words import is_held_out

SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


def operands(text: str) -> tuple[int, str, int, int] | None:
    found = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+).*", text)
    return (int(found[1]), found[2], int(found[3]), int(found[4])) if found else None


def test_answers_are_right_and_pairs_are_split(worlds) -> None:
    seen = 0
    for world in worlds(2000):
        made = arithmetic.calculation(world).messages[-1]["content"]
        parsed = operands(made)
        if parsed:
            a, sign, b, result = parsed
            assert SIGNS[sign](a, b) == result
            seen += sign == "+"
            assert sign != "+" or not is_held_out(str((min(a, b), max(a, b))))
    assert seen > 200


def test_held_out_pairs_are_the_other_ones(worlds) -> None:
    for world in worlds(200, held_out=True):
        a, b = arithmetic.addition_pair(world)
        assert is_held_out(str((min(a, b), max(a, b))))


def test_story_problems_add_up(worlds) -> None:
    for world in worlds(200):
        a, sign, b, result = operands(arithmetic.story_problem(world).messages[-1]["content"])
        assert SIGNS[sign](a, b) == result >= 0


def test_the_written_working_gives_the_digits(worlds) -> None:
    for world in worlds(300):
        made = arithmetic.column_addition(world)
        digits = re.findall(r"[Ww]rite (\d)", made.thought)
        a, _, b, result = operands(made.messages[-1]["content"])
        assert "".join(reversed(digits)).lstrip("0") == (str(result) if result else "")
        assert a + b == result


def test_comparisons_and_extremes_hold(worlds) -> None:
    for world in worlds(300):
        question, answer = (m["content"] for m in arithmetic.comparison(world).messages)
        numbers = [int(n) for n in re.findall(r"\d+", question)]
        said = int(re.search(r"\d+", answer)[0])
        largest = re.search(r"largest|larger|bigger|greater", answer) is not None
        assert said == (max(numbers) if largest else min(numbers))
