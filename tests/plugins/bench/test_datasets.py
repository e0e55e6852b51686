"""Random prompts with shared prefixes, and recorded conversations."""

import json
import random
from pathlib import Path

import pytest

from hotshoe.errors import ConfigError
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_bench.datasets import Sizes, conversation_queries, random_queries
from hotshoe_bench.prompts import IdWriter
from hotshoe_demo import MODEL


def make(count: int, sizes: Sizes) -> list:
    return list(random_queries(count, sizes, IdWriter(4096), random.Random(0)))


def test_lengths_are_exact() -> None:
    queries = make(20, Sizes(30, 12))
    assert {(len(q.prompt), q.input_len, q.output_len) for q in queries} == {(30, 30, 12)}


def test_lengths_within_a_range() -> None:
    queries = make(500, Sizes(40, 20, range_ratio=0.5))
    assert {len(q.prompt) for q in queries} == set(range(20, 61))
    assert {q.output_len for q in queries} == set(range(10, 31))
    assert all(len(q.prompt) == q.input_len for q in queries)


def test_prefixes_are_used_in_turn() -> None:
    prompts = [q.prompt for q in make(9, Sizes(5, 1, prefix_len=64, num_prefixes=3))]
    assert all(len(prompt) == 69 for prompt in prompts)
    prefixes = [tuple(prompt[:64]) for prompt in prompts]
    assert prefixes[0:3] == prefixes[3:6] == prefixes[6:9]
    assert len(set(prefixes)) == 3
    assert len({tuple(prompt[64:]) for prompt in prompts}) == 9


@pytest.mark.parametrize(
    "values", [{"input_len": 0}, {"output_len": 0}, {"prefix_len": -1}, {"num_prefixes": 0}]
)
def test_bad_sizes(values: dict) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        Sizes(**{"input_len": 1, "output_len": 1, **values})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


def conversation(*turns: object) -> dict:
    return {"conversations": [{"from": "human", "value": turn} for turn in turns]}


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_conversations(tokenizer: Tokenizer, tmp_path: Path) -> None:
    entries = [
        conversation("What is this?", "It is a lamp."),
        conversation("Alone"),
        conversation("", "answer"),
        conversation("question", 5),
        {"other": 1},
        "no",
        conversation("Say yes", "yes", "again"),
    ]
    path = write(tmp_path / "c.json", entries)
    queries = conversation_queries(path, 5, tokenizer, None, random.Random(0))
    assert len(queries) == 5
    assert {q.prompt for q in queries} == {"What is this?", "Say yes"}
    for query in queries:
        assert query.input_len == len(tokenizer.encode(query.prompt))
        answer = {"What is this?": "It is a lamp.", "Say yes": "yes"}[query.prompt]
        assert query.output_len == len(tokenizer.encode(answer))
    fixed = conversation_queries(path, 2, tokenizer, 9, random.Random(0))
    assert [q.output_len for q in fixed] == [9, 9]


@pytest.mark.parametrize(
    ("value", "message"), [([], "holds no conversation"), ({}, "must hold a JSON list")]
)
def test_bad_files(tokenizer, tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conversation_queries(write(tmp_path / "c.json", value), 1, tokenizer, None, random.Random())


def test_no_json(tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("[")
    with pytest.raises(ConfigError, match="cannot read"):
        conversation_queries(path, 1, tokenizer, None, random.Random(0))
