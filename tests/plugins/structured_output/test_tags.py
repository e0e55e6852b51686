"""Structural tags as clients describe them."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.tags import Part, StructuralTag, Structure, parse_tag
from hotshoe_structured_output.xgrammar_backend import XGrammar

GOOD = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}


def parse(value):
    return parse_tag(GrammarSpec.structural_tag(value).value)


def test_a_description_is_read() -> None:
    section = Structure("<a>", (Part("schema", {}),), "</a>")
    assert parse(GOOD) == StructuralTag((section,), ("<a",))
    full = GOOD | {
        "type": "structural_tag",
        "opening": "<",
        "triggers": ["<<"],
        "separator": ", ",
        "closing": ">",
        "at_least_one": True,
        "stop_after_first": True,
    }
    assert parse(full) == StructuralTag((section,), ("<<",), ("<",), ", ", ">", True, True)
    assert parse(GOOD | {"separator": None}).separator is None


def test_another_librarys_format_passes() -> None:
    assert parse({"format": {"type": "any_text"}}) == {"format": {"type": "any_text"}}


def in_parts(*parts):
    return {"structures": [{"begin": "<a>", "parts": [*parts], "end": ""}], "triggers": ["<a"]}


def test_parts_are_read() -> None:
    schema = {"schema": False}
    pattern = {"regex": "x"}
    found = parse(in_parts({"text": ""}, {"either": [[schema, {"text": "y"}, pattern], []]}))
    inner = (Part("schema", False), Part("text", "y"), Part("regex", "x"))
    assert found.structures[0].parts == (Part("text", ""), Part("either", (inner, ())))
    assert set(found.parts()) == {*found.structures[0].parts, *inner}
    assert found.schemas == [False]


def test_parts_follow_one_another(bench) -> None:
    spec = GrammarSpec.structural_tag(
        in_parts(
            {"regex": "[xy]{2}"},
            {
                "either": [
                    [{"text": "="}, {"schema": {"const": [1]}}],
                    [{"text": ">"}, {"until": ";\n"}],
                    [],
                ]
            },
            {"text": "!"},
        )
        | {"at_least_one": True, "stop_after_first": True}
    )
    grammar = bench.compile(spec)
    for text in ("<a>xy!", "<a>yy=[1]!", "<a>xx>\nfree; text;\n!", "<a>xx>;\n!"):
        assert bench.accepts(grammar, text), text
    for text in ("<a>x!", "<a>xy=[2]!", "<a>xx>;\n;\n!", "<a>xy", "<a>xy?!"):
        assert not bench.accepts(grammar, text), text


def test_patterns_within_tags_are_judged() -> None:
    spec = GrammarSpec.structural_tag(in_parts({"either": [[{"text": ""}, {"regex": "(?=x)"}]]}))
    assert "'(?'" in XGrammar().refusal(spec)


STRUCTURE = GOOD["structures"][0]
BAD = [
    ([], "is a JSON object"),
    (GOOD | {"tags": []}, "no field 'tags'"),
    (GOOD | {"structures": {}}, "structures of a structural tag must be a list"),
    (GOOD | {"structures": []}, "takes 1 to 256 structures"),
    (GOOD | {"structures": [3]}, "exactly the fields begin, schema .* and end"),
    (GOOD | {"structures": [{"begin": "<a>"}]}, "exactly the fields begin, schema .* and end"),
    (GOOD | {"structures": [STRUCTURE | {"parts": []}]}, "exactly the fields"),
    (GOOD | {"structures": [{"begin": "<a>", "parts": {}, "end": ""}]}, "must be a list"),
    (in_parts(3), "one field of: text, schema, regex, until, either"),
    (in_parts({}), "one field of"),
    (in_parts({"text": "", "regex": "x"}), "one field of"),
    (in_parts({"Text": ""}), "one field of"),
    (in_parts({"text": 3}), "text of a structure must be text"),
    (in_parts({"until": ""}), "until of a structure must be text, and not empty"),
    (in_parts({"either": []}), "either of a structure must be a list of lists"),
    (in_parts({"either": [3]}), "parts of a structure must be a list"),
    (in_parts({"either": [[{"until": "x"}]]}), "before until of a structure there must be text"),
    (in_parts({"schema": 3}), "must be a JSON Schema"),
    (GOOD | {"structures": [STRUCTURE | {"begin": 3}]}, "must be text"),
    (GOOD | {"structures": [STRUCTURE | {"schema": 3}]}, "must be a JSON Schema"),
    (GOOD | {"triggers": []}, "at least one trigger"),
    (GOOD | {"triggers": [""]}, "takes no empty text"),
    (GOOD | {"triggers": [3]}, "triggers of a structural tag takes up to 64 texts"),
    (GOOD | {"triggers": ["b"]}, "'<a>' must start with one of the triggers: 'b'"),
    (GOOD | {"at_least_one": 1}, "at_least_one of a structural tag must be a bool"),
    (GOOD | {"triggers": ["<"] * 65}, "up to 64 texts"),
    (GOOD | {"opening": ["<a"] * 5}, "openings of a structural tag takes up to 4 texts"),
    (GOOD | {"structures": [STRUCTURE] * 20, "triggers": ["<a"] * 64}, "more than 1024"),
    (GOOD | {"opening": []}, "at least one trigger and one opening"),
    (GOOD | {"marks": [" "]}, "marks of a structural tag takes no empty text"),
    (GOOD | {"leading": ["x"]}, "leading of a structural tag needs stop_after_first"),
    (GOOD | {"preface": ["<", ">"]}, "preface of a structural tag .* needs at_least_one"),
    (GOOD | {"preface": ["<"], "at_least_one": True}, "preface of a structural tag takes two"),
    (GOOD | {"otherwise": {}}, "otherwise of a structural tag needs at_least_one"),
    (GOOD | {"opening": None}, "opening of a structural tag must be a str"),
    ("{", "is not JSON"),
]


@pytest.mark.parametrize(("value", "match"), BAD)
def test_mistakes_are_named(value, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        parse(value)
    assert caught.value.field == "grammar"


def test_schemas_within_tags_are_judged(bench) -> None:
    bad = {"type": "array", "uniqueItems": True}
    portable = GOOD | {"structures": [STRUCTURE | {"schema": bad}]}
    assert "'uniqueItems'" in bench.backend.refusal(GrammarSpec.structural_tag(portable))
    otherwise = GOOD | {"otherwise": bad, "at_least_one": True, "stop_after_first": True}
    assert "'uniqueItems'" in bench.backend.refusal(GrammarSpec.structural_tag(otherwise))
    content = {"type": "json_schema", "json_schema": bad}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    own = GrammarSpec.structural_tag({"type": "structural_tag", "format": tag})
    assert bench.backend.refusal(own) is not None
