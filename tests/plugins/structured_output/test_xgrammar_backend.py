"""The backend xgrammar on its own: what it would ignore is refused."""

import pytest
from tests.plugins.structured_output.conftest import make_bench

from hotshoe.errors import RequestError
from hotshoe.grammar import Vocabulary
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import GrammarSpec
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
        GrammarSpec.ebnf("root ::= nope"),
        GrammarSpec.json_schema({"type": "integer", "minimum": 5, "maximum": 3}),
    ],
    ids=["grammar", "schema"],
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


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert XGrammar().missing() == "its library is not installed: pip install xgrammar"
