"""The backend xgrammar on its own: what it would ignore is refused."""

import threading

import numpy as np
import pytest
from tests.plugins.structured_output.conftest import make_bench

from hotshoe.errors import RequestError
from hotshoe.grammar import Vocabulary
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.apart import Apart
from hotshoe_structured_output.xgrammar_backend import MAX_SCHEMAS, XGrammar

STRING = {"type": "string"}


@pytest.mark.parametrize(
    "part", ["(?=a)", "(?!a)", "(?<=a)", "(?i)", r"\b", r"\1", r"\pL", r"\Z", r"[\b]", "^", "$"]
)
def test_parts_of_expressions_are_refused_by_name(part: str) -> None:
    refusal = XGrammar().refusal(GrammarSpec.regex(f"x{part}y"))
    assert refusal is not None
    assert "in a regular expression is not supported" in refusal


@pytest.mark.parametrize(
    "pattern", [r"(?:a|b)\.", r"\\b", r"[a-z]\d\w\s", "a?", "^[^$^]$", r"[\]^]", r"\$\^"]
)
def test_other_expressions_are_not(pattern: str) -> None:
    assert XGrammar().refusal(GrammarSpec.regex(pattern)) is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "maxLength": 3}, "'maxLength' is not supported"),
        ({"type": "string", "pattern": "a"}, "'pattern' is not supported"),
        ({"type": "string", "enum": ["a", 1]}, "'enum' has a value that 'type' does not allow"),
        ({"enum": ["a"], "maximum": 1}, "'enum' beside 'maximum' is not supported"),
        ({"minimum": 1}, "'minimum' needs 'type' to be integer or number"),
        ({"type": "integer", "minimum": 1.5}, "'minimum' of an integer must be whole"),
        ({"type": "object", "required": ["a"]}, "'required' names 'a'"),
        (
            {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
            "'additionalProperties' beside 'properties' must be false",
        ),
        ({"allOf": [STRING, STRING]}, "'allOf' with several members"),
        ({"anyOf": [STRING], "type": "string"}, "'anyOf' beside 'type'"),
        ({"type": "array", "items": [STRING]}, "'items' as a list"),
        ({"type": "array", "minItems": 2}, "'minItems' needs items"),
        (
            {"type": "object", "properties": {f"p{i}": STRING for i in range(101)}}
            | {"minProperties": 1, "additionalProperties": False},
            "'minProperties' beside 101 properties takes too many states",
        ),
        ({"type": "integer", "multipleOf": 1025}, "'multipleOf' above 1024 is not supported"),
        ({"anyOf": [{"const": i} for i in range(MAX_SCHEMAS)]}, "more than 500 subschemas"),
    ],
)
def test_what_it_would_ignore_is_refused(schema, reason: str) -> None:
    assert reason in XGrammar().refusal(GrammarSpec.json_schema(schema))


def test_the_largest_factor(bench) -> None:
    grammar = bench.compile(GrammarSpec.json_schema({"type": "integer", "multipleOf": 1024}))
    assert bench.accepts(grammar, "2048")
    assert not bench.accepts(grammar, "2049")


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.regex("x("),
        GrammarSpec.json_schema({"type": "integer", "minimum": 5, "maximum": 3}),
    ],
    ids=["regex", "schema"],
)
def test_mistakes_name_no_place_in_the_library(
    vocabulary: Vocabulary, tokenizer: Tokenizer, spec: GrammarSpec
) -> None:
    with pytest.raises(RequestError, match=f"this {spec.kind} cannot be compiled: [A-Z]") as caught:
        make_bench("xgrammar", vocabulary, tokenizer).compile(spec)
    assert ".cc" not in str(caught.value)


def test_its_own_structural_tags(bench) -> None:
    if not isinstance(bench.backend, XGrammar):
        spec = GrammarSpec.structural_tag({"format": {}})
        assert "with 'format' is not supported" in bench.backend.refusal(spec)
        return
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    spec = GrammarSpec.structural_tag({"type": "structural_tag", "format": tag})
    grammar = bench.compile(spec)
    assert bench.accepts(grammar, "<a>12</a>")
    assert not bench.accepts(grammar, "<a>x</a>")


#: Each would keep the library busy over one token for minutes.
EXPLOSION = "((a{0,50}){0,50}){0,50}"
RUNAWAY = {
    "grammar": {"type": "grammar", "grammar": f"root ::= {EXPLOSION.replace('a', '[a]')}"},
    "regex": {"type": "regex", "pattern": EXPLOSION},
    "repeat": {"type": "repeat", "min": 0, "max": 10**9, "content": {"type": "any_text"}},
    "inside": {"type": "sequence", "elements": [{"type": "regex", "pattern": EXPLOSION}]},
    "in a tag": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "grammar", "grammar": 'root ::= root root | "a"'},
        "end": "</a>",
    },
}


@pytest.mark.parametrize("name", RUNAWAY)
def test_parts_of_its_own_tags_without_limits_are_refused(name: str) -> None:
    spec = GrammarSpec.structural_tag({"type": "structural_tag", "format": RUNAWAY[name]})
    assert "the library matches it without a limit" in XGrammar().refusal(spec)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.ebnf('root ::= root root | "a"'),
        GrammarSpec.regex(EXPLOSION),
        GrammarSpec.regex("(a|aa)*b"),
        GrammarSpec.structural_tag(
            {
                "structures": [{"begin": "<a>", "parts": [{"regex": EXPLOSION}], "end": ""}],
                "triggers": ["<a>"],
            }
        ),
    ],
    ids=["grammar", "counts", "star", "part"],
)
def test_grammars_without_limits_are_refused(spec: GrammarSpec) -> None:
    assert "the library matches it without a limit" in XGrammar().refusal(spec)


@pytest.mark.parametrize("part", [{}, {"type": 3}, "text", {"type": "or", "elements": [3]}])
def test_malformed_parts_of_its_own_tags(part) -> None:
    with pytest.raises(RequestError, match="an object with a 'type'"):
        XGrammar().refusal(GrammarSpec.structural_tag({"format": part}))


def test_fields_of_its_own_tags_that_would_loosen_a_schema_are_refused() -> None:
    part = {"type": "json_schema", "json_schema": {"type": "object"}, "any_order": True}
    refusal = XGrammar().refusal(GrammarSpec.structural_tag({"format": part}))
    assert refusal == "field 'any_order' of format 'json_schema' is not supported"


class Stuck:
    """A matcher of the library in a call that does not end."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def accept_token(self, token_id: int) -> bool:
        return self.gate.wait(60)


def test_a_text_that_takes_too_long_fails_alone(vocabulary: Vocabulary, tokenizer) -> None:
    compiler = XGrammar().open(vocabulary)
    compiler._apart = Apart(limit_s=0.5)
    grammar = compiler.compile(GrammarSpec.regex("[0-9]{3}"))
    matcher, other = grammar.matcher(), grammar.matcher()
    matcher._inner = stuck = Stuck()
    [seven] = tokenizer.encode("7", add_special_tokens=False)
    assert not matcher.accept(seven)
    assert "matching it took longer than 0.5 s" in matcher.failure()
    masks = np.ones((2, vocabulary.num_words), np.int32)
    compiler.fill([matcher, other], masks)
    assert not masks[0].any() and masks[1].any()
    assert not matcher.accept(seven) and not matcher.may_end()
    assert other.accept(seven) and other.failure() is None
    stuck.gate.set()


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert XGrammar().missing() == "its library is not installed: pip install xgrammar"
