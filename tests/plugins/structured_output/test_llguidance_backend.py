"""The backend llguidance on its own: limits, failures, memory."""

import json

import numpy as np
import pytest

from hotshoe.errors import RequestError
from hotshoe.grammar import Vocabulary
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.llguidance_backend import (
    BASE_BYTES,
    MAX_ITEMS,
    MAX_OPTIONAL,
    LLGuidance,
)


def test_matchers_share_nothing_that_shows(llguidance_bench) -> None:
    grammar = llguidance_bench.compile(GrammarSpec.regex("[0-9][a-z]{3}"))
    one, other = grammar.matcher(), grammar.matcher()
    [token] = llguidance_bench.encode("7")
    assert one.accept(token)
    assert not set(llguidance_bench.allowed(one)) & set(llguidance_bench.allowed(other))


def test_a_forbidden_token_is_not_accepted(llguidance_bench) -> None:
    matcher = llguidance_bench.compile(GrammarSpec.regex("[0-9]{3}")).matcher()
    [token] = llguidance_bench.encode("a")
    assert not matcher.accept(token)
    assert matcher.failure() == "it does not allow the sampled token"


def test_what_no_text_fits_says_so(llguidance_bench) -> None:
    matcher = llguidance_bench.compile(GrammarSpec.regex(r"[^\s\S]")).matcher()
    llguidance_bench.allowed(matcher)
    assert matcher.failure() == "no text that goes on from here fits it"


def test_a_schema_that_grows_too_large_says_so_when_it_takes_nothing(llguidance_bench) -> None:
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(60)}}
    spec = GrammarSpec.json_schema(json.dumps({"anyOf": [wide] * 40}))
    matcher = llguidance_bench.compile(spec).matcher()
    [token] = llguidance_bench.encode("{")
    llguidance_bench.allowed(matcher)
    assert not matcher.accept(token)
    assert matcher.failure().startswith("it is too complex: Parser Error: Current row has")


def test_a_mask_that_would_take_long_fails(llguidance_bench) -> None:
    grammar = "root ::= " + '([a-z]{0,200} "b"?){0,200} ' * 50
    matcher = llguidance_bench.compile(GrammarSpec.ebnf(grammar)).matcher()
    llguidance_bench.allowed(matcher)
    assert f"Too many items (limit {MAX_ITEMS}" in matcher.failure()


def test_many_choices(llguidance_bench) -> None:
    texts = [f"value{i}" for i in range(5000)]
    grammar = llguidance_bench.compile(GrammarSpec.choice(texts))
    assert llguidance_bench.accepts(grammar, "value4999")
    assert not llguidance_bench.accepts(grammar, "value5000")


def test_many_optional_properties(llguidance_bench) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(MAX_OPTIONAL)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    grammar = llguidance_bench.compile(GrammarSpec.json_schema(schema))
    assert llguidance_bench.accepts(grammar, '{"p1":1,"p1989":2}')
    wider = {**schema, "properties": {**properties, "q": {"type": "null"}, "r": {"type": "null"}}}
    spec = GrammarSpec.json_schema({"items": {**wider, "required": ["q"]}})
    refusal = LLGuidance().refusal(spec)
    assert refusal == "an object with 1991 optional properties, of 1990 (at #/items)"
    assert LLGuidance().refusal(GrammarSpec.json_schema({**wider, "required": ["q", "r"]})) is None


@pytest.mark.parametrize("pattern", ["a\\", "\\", "\\d\\\\\\"])
def test_a_trailing_backslash_is_refused(llguidance_bench, pattern: str) -> None:
    with pytest.raises(RequestError, match="ends in a backslash"):
        llguidance_bench.compile(GrammarSpec.regex(pattern))


def test_size_grows_with_the_grammar(llguidance_bench) -> None:
    small = llguidance_bench.compile(GrammarSpec.choice(["a"]))
    large = llguidance_bench.compile(GrammarSpec.choice([f"value{i}" for i in range(5000)]))
    assert BASE_BYTES < small.num_bytes < 100_000 < large.num_bytes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec.regex("("), "this regex cannot be compiled: invalid regex"),
        (GrammarSpec.ebnf("root ::= ("), "the grammar is malformed: .*Expected"),
        (GrammarSpec.json_schema({"minimum": 3, "maximum": 2, "type": "integer"}), "greater than"),
    ],
)
def test_messages_are_one_plain_line(llguidance_bench, spec, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        llguidance_bench.compile(spec)
    assert "\n" not in str(caught.value)
    assert "no_forcing" not in str(caught.value)


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert LLGuidance().missing() == "its library is not installed: pip install llguidance"


@pytest.mark.parametrize("num_matchers", [1, 3])
def test_masks_are_the_same_with_and_without_threads(
    vocabulary, monkeypatch, num_matchers: int
) -> None:
    patterns = ["[0-9]{3}", "[a-z]+", "x|yes"][:num_matchers]
    masks = []
    for cores in (1, 8):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        compiler = LLGuidance().open(vocabulary)
        matchers = [compiler.compile(GrammarSpec.regex(p)).matcher() for p in patterns]
        masks.append(np.zeros((num_matchers, vocabulary.num_words), np.int32))
        compiler.fill(matchers, masks[-1])
    assert masks[0].any(axis=1).all()
    assert np.array_equal(*masks)


@pytest.mark.parametrize("num_tokens", [31, 32])
def test_a_model_without_a_token_that_ends_a_text(num_tokens: int) -> None:
    """Its first token was taken for one, and went on behind a finished text."""
    tokens = (b"!", *(bytes([97 + i % 26]) for i in range(num_tokens - 1)))
    compiler = LLGuidance().open(Vocabulary(tokens, {}, ()))
    matcher = compiler.compile(GrammarSpec.regex("!a?")).matcher()
    masks = np.zeros((1, 1), np.int32)
    compiler.fill([matcher], masks)
    assert masks[0, 0] == 1
    assert matcher.accept(0)
    compiler.fill([matcher], masks)
    assert masks[0, 0] == (1 << 1) | (1 << 27)
    assert matcher.may_end()
    assert matcher.accept(1)
    compiler.fill([matcher], masks)
    assert masks[0, 0] == 0
    assert matcher.may_end()
