"""The small jobs are done right."""

import re

from demo_data.tasks import instructions


def pairs(worlds, make, count: int = 200) -> list[tuple[str, str]]:
    made = (make(world).messages for world in worlds(count))
    return [(question["content"], answer["content"]) for question, answer in made]


def test_a_repeated_text_stands_in_the_request(worlds) -> None:
    for question, answer in pairs(worlds, instructions.repeat):
        times = re.search(r" (\d) times\.$", question)
        if times:
            part = answer[: (len(answer) + 1) // int(times[1]) - 1]
            assert answer == " ".join([part] * int(times[1]))
            assert part in question
        else:
            assert answer in question


def test_reversed_words_are_the_same_words(worlds) -> None:
    for question, answer in pairs(worlds, instructions.reverse):
        if ":" in question:
            assert answer.split() == question.split(": ")[1].split()[::-1]
        else:
            assert answer.replace("-", "")[::-1] in question


def test_sorted_items_are_sorted(worlds) -> None:
    for question, answer in pairs(worlds, instructions.sort):
        items = question.split(": ")[1].split(", ")
        numbers = items[0].isdigit()
        assert answer.split(", ") == sorted(items, key=int if numbers else str)


def test_case_changes_nothing_else(worlds) -> None:
    for question, answer in pairs(worlds, instructions.case):
        assert answer.lower() in question.lower()


def test_the_picked_word_is_at_its_place(worlds) -> None:
    for question, answer in pairs(worlds, instructions.pick_word):
        words = re.split(r",? ", question.split(": ")[1])
        if answer.startswith("There are"):
            assert int(answer.split()[2]) == len(words)
        else:
            assert answer.rstrip(".").split()[-1] in words
