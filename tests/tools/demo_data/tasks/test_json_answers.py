"""JSON answers parse to what is expected, and their values come from the prompt."""

import json

from demo_data.tasks import json_answers
from demo_data.words import spoken


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_answers_parse_to_the_expected_value(worlds) -> None:
    for world in worlds(500):
        made, expected = json_answers.json_case(world)
        assert json.loads(made.messages[-1]["content"]) == expected


def test_values_stand_in_the_prompt(worlds) -> None:
    for make in (json_answers.extraction, json_answers.pairs, json_answers.array):
        for world in worlds(200):
            made, expected = make(world)
            for leaf in leaves(expected):
                assert leaf is None or spoken(leaf) in made.messages[-2]["content"]


def test_a_schema_names_the_types_of_the_answer(worlds) -> None:
    for world in worlds(100):
        made, expected = json_answers.schema(world)
        prompt = made.messages[0]["content"]
        for key, value in expected.items():
            kind = "integer" if isinstance(value, int) else "string"
            assert f'"{key}": {{"type": "{kind}"}}' in prompt


def test_join_reads_as_english() -> None:
    assert json_answers.join(["a"]) == "a"
    assert json_answers.join(["a", "b", "c"]) == "a, b and c"
