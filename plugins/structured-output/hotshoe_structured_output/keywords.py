"""Which JSON Schema keywords each backend honors: tables, and the walk that applies them.

A keyword of the standard that a backend would ignore is refused by name, because text that only
seems to follow a schema is worse than none. Names that the standard does not know are annotations
and ignored, as it says. Source: JSON Schema 2020-12, core and validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hotshoe_structured_output.schema import Schema, reachable

Object = Mapping[str, Any]
#: Returns why a keyword cannot be honored in this schema; None if it can.
Condition = Callable[[Object], str | None]
Table = Mapping[str, Condition]

#: Keywords that say nothing about which values are valid, or hold what others refer to.
ANNOTATIONS = frozenset(
    "$anchor $comment $defs $id $schema $vocabulary contentEncoding contentMediaType contentSchema "
    "default definitions deprecated description example examples readOnly title writeOnly".split()
)
#: All other keywords of the standard, drafts 4 to 2020-12.
ASSERTIONS = frozenset(
    "$dynamicRef $recursiveRef $ref additionalItems additionalProperties allOf anyOf const "
    "contains dependencies dependentRequired dependentSchemas else enum exclusiveMaximum "
    "exclusiveMinimum format if items maxContains maxItems maxLength maxProperties maximum "
    "minContains minItems minLength minProperties minimum multipleOf not oneOf pattern "
    "patternProperties prefixItems properties propertyNames required then type "
    "unevaluatedItems unevaluatedProperties uniqueItems".split()
)
#: An extension of llguidance that would change how its backend works; not for clients.
RESERVED = "x-guidance"
FORMATS = frozenset("date date-time duration email hostname ipv4 ipv6 time uri uuid".split())
#: Those that the standard defines beside these. All others are annotations, as it says.
_OTHER_FORMATS = frozenset(
    "idn-email idn-hostname iri iri-reference json-pointer regex relative-json-pointer "
    "uri-reference uri-template".split()
)
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
#: llguidance counts in doubles: it would round what is larger, and crash near 64 bits.
MAX_EXACT = 2**53
MAX_INT64 = 2**63 - 1
#: xgrammar writes six, and nothing where no such number lies within the bounds.
MAX_DECIMALS = 5
_ALTERNATIVES = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
#: The time to intersect patterns grows exponentially: 10 take 10 ms, 20 take 6 s, 40 never end.
MAX_COMBINED_PATTERNS = 10
#: Of counted properties, in xgrammar; this many take a second.
MAX_STATES = 10_000
#: xgrammar lets any integer through for a larger one.
MAX_FACTOR = 1024
#: Characters that JSON can spell only as \u escapes.
_CONTROL = re.compile("[\x00-\x07\x0b\x0e-\x1f]")


def unsupported(root: Schema, table: Table, max_schemas: int) -> str | None:
    """Return the first thing in a schema that a backend cannot honor.

    Args:
        root: The schema.
        table: What the backend honors.
        max_schemas: How many subschemas it takes.

    Raises:
        RequestError: The schema is malformed.
    """
    if root is False:
        return "the schema false allows nothing"
    patterns: set[str] = set()
    combined, bases, refers = False, [], False
    for count, (place, schema) in enumerate(reachable(root), 1):
        if count > max_schemas:
            return f"more than {max_schemas} subschemas"
        refers = refers or "$ref" in schema
        if "$id" in schema and place != "#":
            bases.append(place)
        patterns.update(_patterns(schema))
        combined = combined or _combines(schema)
        if combined and len(patterns) > MAX_COMBINED_PATTERNS:
            return f"more than {MAX_COMBINED_PATTERNS} patterns in a schema that combines schemas"
        for keyword in schema:
            reason = None
            if keyword in table:
                reason = table[keyword](schema)
            elif keyword in ASSERTIONS or keyword == RESERVED:
                reason = "is not supported"
            if reason is not None:
                return f"JSON Schema keyword {keyword!r} {reason} (at {place})"
    if refers and bases:  # which would change where a reference leads
        return (
            f"JSON Schema keyword '$id' beside '$ref' is supported at the top only (at {bases[0]})"
        )
    return None


def _patterns(schema: Object) -> Iterator[str]:
    """Return the regular expressions of a schema, by text or name."""
    if "pattern" in schema:
        yield f"pattern {schema['pattern']}"
    if format_of(schema) is not None:
        yield f"format {schema['format']}"
    yield from schema.get("patternProperties", ())


def _combines(schema: Object) -> bool:
    """Tell whether a value must follow several schemas at once, so that patterns may intersect."""
    if len(schema.get("allOf", ())) > 1:
        return True
    return len(ASSERTIONS.intersection(schema)) > 1 and not _ALTERNATIVES.isdisjoint(schema)


def _fine(schema: Object) -> None:
    return None


def format_of(schema: Object) -> str | None:
    """Return the format that limits a schema's strings; None if it has none, or no strings."""
    types = schema.get("type", "string")
    named = schema.get("format")
    strings = "string" in ([types] if isinstance(types, str) else types)
    return named if strings and named in FORMATS | _OTHER_FORMATS else None


def _known_format(schema: Object) -> str | None:
    if format_of(schema) in FORMATS | {None}:
        return None
    return f"{schema['format']!r} is not supported (formats: {', '.join(sorted(FORMATS))})"


def _distinct_names(schema: Object) -> str | None:
    """Equal names count once when JSON is read, but nothing keeps open names distinct."""
    count = schema["minProperties"]
    enough = len(set(schema.get("required", ())))
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if count <= max(enough, 1) or closed:
        return None
    return "above 1 needs additionalProperties: false, to keep property names distinct"


def _all_required(schema: Object) -> str | None:
    optional = set(schema.get("properties", ())) - set(schema.get("required", ()))
    return f"is not supported while property {min(optional)!r} is optional" if optional else None


def _spelt(keyword: str) -> Condition:
    def check(schema: Object) -> str | None:
        if any(map(_has_control_character, _leaves(schema[keyword]))):
            return "holds a control character, which cannot be generated"
        return None

    return check


def _exact(keyword: str, limit: int) -> Condition:
    def check(schema: Object) -> str | None:
        numbers = (leaf for leaf in _leaves(schema[keyword]) if isinstance(leaf, (int, float)))
        if any(abs(number) > limit for number in numbers):
            return f"holds a number beyond {limit}, which cannot be kept exactly"
        return None

    return check


def _leaves(value: Any) -> Iterator[Any]:
    """Visit what a JSON value holds, names included."""
    todo = [value]
    while todo:
        found = todo.pop()
        if isinstance(found, Mapping):
            todo += (*found, *found.values())
        elif isinstance(found, list):
            todo += found
        else:
            yield found


def _has_control_character(leaf: Any) -> bool:
    return isinstance(leaf, str) and _CONTROL.search(leaf) is not None


def _names_spelt(schema: Object) -> str | None:
    if any(map(_has_control_character, schema["properties"])):
        return "has a name with a control character, which cannot be generated"
    return None


def _number_bounds(keyword: str, limit: int) -> Condition:
    def check(schema: Object) -> str | None:
        return None if abs(schema[keyword]) <= limit else f"is beyond {limit}"

    return check


def _whole_number_within(keyword: str, sign: int, *others: str) -> Condition:
    """Without one, llguidance takes an exclusive bound, if whole, for a value."""

    def check(schema: Object) -> str | None:
        bound = sign * schema[keyword]
        ends = [sign * schema[other] for other in others if other in schema]
        if bound >= 0 and bound == int(bound) and any(end < bound + 1 for end in ends):
            return "with no whole number up to the other bound is not supported"
        return None

    return check


def _both(*conditions: Condition) -> Condition:
    def check(schema: Object) -> str | None:
        return next((r for r in (condition(schema) for condition in conditions) if r), None)

    return check


LLGUIDANCE: Table = {
    **dict.fromkeys(
        "$ref additionalItems additionalProperties allOf anyOf items maxItems maxLength "
        "minItems minLength oneOf pattern patternProperties prefixItems required "
        "type".split(),
        _fine,
    ),
    **{keyword: _number_bounds(keyword, MAX_EXACT) for keyword in _NUMERIC},
    "const": _both(_spelt("const"), _exact("const", MAX_EXACT)),
    "enum": _both(_spelt("enum"), _exact("enum", MAX_EXACT)),
    "exclusiveMaximum": _both(
        _number_bounds("exclusiveMaximum", MAX_EXACT),
        _whole_number_within("exclusiveMaximum", -1, "minimum", "exclusiveMinimum"),
    ),
    "exclusiveMinimum": _both(
        _number_bounds("exclusiveMinimum", MAX_EXACT),
        _whole_number_within("exclusiveMinimum", 1, "maximum", "exclusiveMaximum"),
    ),
    "format": _known_format,
    "maxProperties": _all_required,
    "minProperties": _both(_all_required, _distinct_names),
    "properties": _names_spelt,
}


# What xgrammar honors is narrower: it often reads one keyword of a schema and skips others, and
# strings of limited length or with a pattern may hold raw control characters, which JSON forbids.


def _alone(keyword: str, *companions: str) -> Condition:
    """The keyword is honored beside these companions and annotations only."""

    def check(schema: Object) -> str | None:
        others = ASSERTIONS.intersection(schema) - {keyword, *companions}
        return f"beside {min(others)!r} is not supported" if others else None

    return check


_JSON_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "string": lambda value: isinstance(value, str),
}


def _listed(keyword: str) -> Condition:
    """A list of values may stand beside a type that all of them have."""
    alone = _alone(keyword, "type")

    def check(schema: Object) -> str | None:
        values = schema[keyword] if keyword == "enum" else [schema[keyword]]
        types = schema.get("type", list(_JSON_TYPES))
        types = types if isinstance(types, list) else [types]
        fits = all(any(_JSON_TYPES[t](v) for t in types if t in _JSON_TYPES) for v in values)
        return alone(schema) if fits else "has a value that 'type' does not allow"

    return check


def _typed(*types: str) -> Condition:
    """A keyword is honored where the type is given and is one of these."""

    def check(schema: Object) -> str | None:
        if schema.get("type") in types:
            return None
        return f"needs 'type' to be {' or '.join(types)}"

    return check


def _short_bounds(keyword: str) -> Condition:
    def check(schema: Object) -> str | None:
        if schema.get("type") == "integer" and not isinstance(schema[keyword], int):
            return "of an integer must be whole"
        if round(schema[keyword], MAX_DECIMALS) != schema[keyword]:
            return f"with more than {MAX_DECIMALS} decimals is not supported"
        return None

    return check


def _declared(schema: Object) -> str | None:
    missing = set(schema["required"]) - set(schema.get("properties", ()))
    return f"names {min(missing)!r}, which 'properties' does not" if missing else None


def _closed(schema: Object) -> str | None:
    if schema["additionalProperties"] is False or not schema.get("properties"):
        return None
    return "beside 'properties' must be false"


def _long_enough(schema: Object) -> str | None:
    return (
        "is below the number of prefixItems"
        if schema["maxItems"] < len(schema.get("prefixItems", ()))
        else None
    )


def _enough(keyword: str, *sources: str) -> Condition:
    """Where nothing else is said, what is not declared is left out."""

    def check(schema: Object) -> str | None:
        if any(schema.get(source) not in (None, False) for source in sources):
            return None
        return f"needs {' or '.join(sources)}" if schema[keyword] else None

    return check


def _few_states(schema: Object) -> str | None:
    """Which property comes next, and after how many: 10,000 states take a second to compile."""
    declared = len(schema.get("properties", ()))
    if declared * min(declared, schema.get("maxProperties", declared)) <= MAX_STATES:
        return None
    return f"beside {declared} properties takes too many states"


def _small_factor(schema: Object) -> str | None:
    if not isinstance(schema["multipleOf"], int):
        return "of an integer must be whole"
    return None if schema["multipleOf"] <= MAX_FACTOR else f"above {MAX_FACTOR} is not supported"


def _unescaped(schema: Object) -> str | None:
    return "with ~ or % is not supported" if {"~", "%"} & set(schema["$ref"]) else None


def _one_member(schema: Object) -> str | None:
    return None if len(schema["allOf"]) == 1 else "with several members is not supported"


def _not_a_list(schema: Object) -> str | None:
    return "as a list is not supported" if isinstance(schema["items"], list) else None


def _unless_annotation(condition: Condition) -> Condition:
    return lambda schema: None if format_of(schema) is None else condition(schema)


XGRAMMAR: Table = {
    "$ref": _both(_alone("$ref"), _unescaped),
    "additionalProperties": _both(_typed("object"), _closed),
    "allOf": _both(_alone("allOf"), _one_member),
    "anyOf": _alone("anyOf"),
    "const": _both(_listed("const"), _spelt("const"), _exact("const", MAX_INT64)),
    "enum": _both(_listed("enum"), _spelt("enum"), _exact("enum", MAX_INT64)),
    "format": _unless_annotation(_both(_typed("string"), _alone("format", "type"), _known_format)),
    "items": _both(_typed("array"), _not_a_list),
    "maxItems": _both(_typed("array"), _long_enough),
    "maxProperties": _both(_typed("object"), _few_states),
    "minItems": _both(_typed("array"), _enough("minItems", "items")),
    "minProperties": _both(
        _typed("object"),
        _enough("minProperties", "properties", "additionalProperties"),
        _distinct_names,
        _few_states,
    ),
    "multipleOf": _both(_typed("integer"), _alone("multipleOf", "type"), _small_factor),
    "prefixItems": _typed("array"),
    "properties": _both(_typed("object"), _names_spelt),
    "required": _both(_typed("object"), _declared),
    "type": _fine,
    **{
        keyword: _both(
            _typed("integer", "number"),
            _number_bounds(keyword, MAX_INT64),
            _short_bounds(keyword),
        )
        for keyword in _NUMERIC[:4]
    },
}
