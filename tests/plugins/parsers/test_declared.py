"""Arguments as a tool's schema declares them, and what cannot be kept of it."""

from typing import Any

import pytest

from hotshoe.errors import RequestError
from hotshoe.lazy import resolve_lazy
from hotshoe_parsers.declared import declared, resolved, unconstrained
from hotshoe_parsers.plugin import TOOL_FORMATS

TEXT = {"type": "string"}
LEAF = {"enum": ["a", "b"]}


def tool(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def test_arguments_stand_alone() -> None:
    definitions = {"leaf": LEAF, "alias": {"$ref": "#/$defs/leaf", "title": "A"}}
    schema = {**tool(a={"$ref": "#/$defs/alias"}, b={"items": {"$ref": "#/$defs/leaf"}}), "x": 1}
    schema = {"$ref": "#/$defs/t", "$defs": {**definitions, "t": {**schema, "required": ["b"]}}}
    with pytest.raises(RequestError, match="keyword 'x' is not supported"):
        declared("f", schema)
    del schema["$defs"]["t"]["x"]
    a, b = declared("f", schema)
    assert (a.name, a.required, b.name, b.required) == ("a", False, "b", True)
    assert a.schema == {**LEAF, "$defs": schema["$defs"]}
    assert b.schema["$defs"] is schema["$defs"]


BAD = [
    ({"patternProperties": {}}, "keyword 'patternProperties'"),
    ({"minProperties": 1}, "keyword 'minProperties'"),
    ({"type": "array"}, "must be of type object"),
    ({"properties": []}, "must be of type object"),
    ({"required": ["a"]}, "'required' names"),
    ({"required": "a"}, "'required' names"),
    ({"properties": {"a": {"$ref": "#"}}}, "'#' does not lead"),
    ({"properties": {"a": {"items": [{"$ref": "#/properties/b"}]}}}, "does not lead"),
    ({"$ref": "#/$defs/none"}, r"keyword '\$ref'"),
]


@pytest.mark.parametrize(("schema", "match"), BAD)
def test_what_cannot_be_kept_is_named(schema: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=f"calls of 'f' cannot .*{match}") as caught:
        declared("f", schema)
    assert caught.value.field == "tools"


def test_circles_end() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert set(resolved(root["$defs"]["a"], root)) == {"$ref"}
    assert unconstrained(root["$defs"]["a"], root) == frozenset()


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string", "title": "T"}, {"string"}),
        ({"type": ["null", "integer"]}, {"null", "integer"}),
        ({"anyOf": [TEXT, {"$ref": "#/$defs/n"}]}, {"string", "null"}),
        ({"anyOf": [LEAF, {"type": "null"}]}, {"null"}),
        ({"type": "string", "minLength": 1}, set()),
        ({"oneOf": [TEXT]}, set()),
    ],
)
def test_types_without_conditions(schema: dict[str, Any], types: set[str]) -> None:
    assert unconstrained(schema, {"$defs": {"n": {"type": "null"}}}) == types
    assert len(unconstrained({"description": "any"}, {})) == 7


PYTHON, XML = "pythonic", "qwen3_xml"
REFUSED = [
    (PYTHON, tool(**{"a-b": TEXT}), "argument 'a-b': its name"),
    (PYTHON, {"properties": {f"a{i}": TEXT for i in range(33)}}, "one must be required"),
    (XML, tool(**{"a>b": TEXT}), "argument 'a>b': its name"),
    (XML, tool(a={"type": "string", "pattern": "x"}), "argument 'a': .*'pattern'"),
    (XML, tool(a={"anyOf": [{"type": "string", "maxLength": 1}, LEAF]}), "'anyOf'"),
    (XML, tool(a={"anyOf": [TEXT, {"type": "integer", "minimum": 1}]}), "'anyOf'"),
    (XML, tool(a={"minLength": 1}), "'minLength'"),
    (XML, tool(a={"enum": ["1", 1]}), "'enum'"),  # which both read as 1
    (XML, tool(a={"type": "string", "enum": ["a", None]}), "'enum'"),
    (XML, tool(a={"const": "x</parameter>"}), "'const'"),
]


@pytest.mark.parametrize(("name", "schema", "match"), REFUSED)
def test_what_formats_cannot_keep_is_named(name: str, schema: dict[str, Any], match: str) -> None:
    found = resolve_lazy(TOOL_FORMATS[name])
    with pytest.raises(RequestError, match=f"calls of 'f' cannot .*{match}"):
        found.calls({"f": schema})
    assert found.calls({"f": None}).tags
