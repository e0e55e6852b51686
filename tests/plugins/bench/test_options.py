"""Flags and what is made of them; mistakes are in test_serve."""

import random
from argparse import Namespace

import pytest

from hotshoe.cli.parser import Parser
from hotshoe_bench.options import add_flags, check, choose_seed, extra_body, make_queries, target


def parse(*words: str) -> Namespace:
    parser = Parser("hotshoe bench serve", "")
    add_flags(parser)
    args = parser.parse(words)
    check(args)
    return args


def test_defaults_make_token_ids() -> None:
    queries = make_queries(parse(), "any", random.Random(0))
    assert len(queries) == 104
    assert {(len(q.prompt), q.output_len) for q in queries} == {(128, 128)}


@pytest.mark.parametrize("words", [["--text"], ["--endpoint", "/v1/chat/completions"]])
def test_text(words: list[str]) -> None:
    queries = make_queries(parse(*words, "--num-prompts", "3"), "demo", random.Random(0))
    assert all(isinstance(q.prompt, str) for q in queries)


def test_warm_up_shares_no_prefix() -> None:
    words = ("--prefix-len", "50", "--input-len", "7", "--num-warmups", "2", "--num-prompts", "2")
    queries = make_queries(parse(*words), "any", random.Random(0))
    assert [q.input_len for q in queries] == [7, 7, 57, 57]


def test_target() -> None:
    there = target(parse("--base-url", "https://host:1/", "--request-timeout", "3"))
    assert (there.base_url, there.endpoint) == ("https://host:1", "/v1/completions")
    assert (there.api_key, there.timeout_s) == (None, 3.0)


def test_fields_of_a_request() -> None:
    assert extra_body(parse()) == {"ignore_eos": True}
    assert extra_body(parse("--no-ignore-eos", "--extra-body", '{"n": 1}')) == {"n": 1}


def test_seeds() -> None:
    assert choose_seed(parse("--seed", "5")) == 5
    assert choose_seed(parse()) != choose_seed(parse())
