"""Patterns as llguidance reads them: a text follows one exactly where the standard says so."""

from __future__ import annotations

import json
import random
import re

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.patterns import rewritten

CHARACTERS = [
    "a",
    "+",
    ",",
    "|",
    '"',
    "\\",
    "\n",
    "\t",
    "/",
    "é",
    "b",
    "-",
    "[",
    "&",
    "日",
    " ",
    "]",
    "^",
]
PATTERNS = [
    r'^[^"]+$',
    r"^[^\\]+$",
    r'^[^"\\]+$',
    r'^[^\\/:*?"<>|]+$',
    r'^([^"]|x)+$',
    r'[^"]',
    r"^\s$",
    r"^\S+$",
    r"^[^\s]+$",
    r"^[\x00-!]$",
    r"^[^a]+$",
    r"^.+$",
    r"^\W+$",
    r"^\\[^\\]$",
    r"^[a&&b]+$",
    r"^[[a]+$",
    r"^[^\]\[]+$",
    r"^\[[^\[]$",
    r"^[+--]$",
    r"^[--/]+$",
    r"^[a||b]+$",
    r"^[a-b-]+$",
]


def follows(bench, pattern: str) -> None:
    grammar = bench.compile(GrammarSpec.json_schema({"type": "string", "pattern": pattern}))
    test = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for text in (*CHARACTERS, *("b" + c for c in CHARACTERS), *("\\" + c for c in CHARACTERS)):
        accepted = bench.accepts(grammar, json.dumps(text, ensure_ascii=False))
        assert accepted == bool(test.search(text)), (pattern, text)


@pytest.mark.filterwarnings("ignore:Possible (nested set|set)")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_follows_a_pattern_as_the_standard_says(llguidance_bench, pattern: str) -> None:
    follows(llguidance_bench, pattern)


@pytest.mark.filterwarnings("ignore:Possible (nested set|set)")
@pytest.mark.parametrize("seed", range(25))
def test_random_classes(llguidance_bench, seed: int) -> None:
    rng = random.Random(seed)
    parts = ["a", '"', r"\\", r"\n", r"\t", "/", "é", r"\s", r"\d", r"\W", r"\x00-\x1f", "a-z"]
    chosen = "".join(rng.sample(parts, rng.randint(1, 4)))
    follows(llguidance_bench, f"^[{rng.choice(['', '^'])}{chosen}]+$")


def test_names_that_follow_a_pattern(llguidance_bench) -> None:
    schema = {
        "type": "object",
        "patternProperties": {'^[^"]+$': {"type": "integer"}},
        "additionalProperties": False,
    }
    grammar = llguidance_bench.compile(GrammarSpec.json_schema(schema))
    assert llguidance_bench.accepts(grammar, '{"a":1}')
    assert not llguidance_bench.accepts(grammar, '{"a\\"":1}')


def test_most_patterns_stay_as_they_are() -> None:
    for pattern in (r"^[a-z]{3}\d+$", r"\.\[\]", "^[!-~]+$", r"\\[x]"):
        assert rewritten(pattern) == pattern


@pytest.mark.parametrize("pattern", ["a\\", "[]", "[^]a", "\\\\\\"])
def test_patterns_without_words_for_them_are_refused(pattern: str) -> None:
    with pytest.raises(RequestError, match="pattern"):
        rewritten(pattern)
