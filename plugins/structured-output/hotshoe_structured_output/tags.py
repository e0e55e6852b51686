r"""Structural tags: text that is free but for sections whose content follows a schema.

One description serves both backends and tool calls:

    {"structures": [{"begin": "<tool_call>\n", "schema": {...}, "end": "\n</tool_call>"}],
     "triggers": ["<tool_call>"]}

Text is free until it contains a trigger. The trigger opens a section: `opening`, then one of the
structures, further ones each after `separator` if there is one, then `closing`; text is free again
behind it. `at_least_one` makes the text begin with a section, `stop_after_first` end with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe_structured_output.schema import Schema, parse_json, refusal

MAX_STRUCTURES = 256
_FIELDS = {
    "type": str,
    "structures": list,
    "triggers": list,
    "opening": str,
    "separator": str,
    "closing": str,
    "at_least_one": bool,
    "stop_after_first": bool,
}


@dataclass(frozen=True, slots=True)
class Structure:
    """A section's content between its marks."""

    begin: str
    schema: Schema
    end: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """See the module. Every structure can be announced: `opening + begin` starts with a trigger."""

    structures: tuple[Structure, ...]
    triggers: tuple[str, ...]
    opening: str = ""
    separator: str | None = None
    closing: str = ""
    at_least_one: bool = False
    stop_after_first: bool = False


def parse_tag(text: str) -> StructuralTag | dict[str, Any]:
    """Read the description; one with a `format` is xgrammar's own and comes back as it is.

    Raises:
        RequestError: It is malformed.
    """
    value = parse_json(text, "structural tag")
    if not isinstance(value, dict):
        raise refusal("a structural tag is a JSON object")
    if "format" in value:
        return value
    for name, found in value.items():
        wanted = _FIELDS.get(name)
        if wanted is None:
            raise refusal(f"a structural tag has no field {name!r} (fields: {', '.join(_FIELDS)})")
        if not isinstance(found, wanted) and not (name == "separator" and found is None):
            raise refusal(f"{name} of a structural tag must be a {wanted.__name__}")
    structures = tuple(_structure(item) for item in value.pop("structures", ()))
    triggers = tuple(value.pop("triggers", ()))
    value.pop("type", None)
    if not 0 < len(structures) <= MAX_STRUCTURES:
        raise refusal(f"a structural tag takes 1 to {MAX_STRUCTURES} structures")
    if not triggers or not all(isinstance(t, str) and t for t in triggers):
        raise refusal("a structural tag takes at least one trigger, and no empty one")
    tag = StructuralTag(structures, triggers, **value)
    for structure in structures:
        if not (tag.opening + structure.begin).startswith(triggers):
            raise refusal(
                f"{tag.opening + structure.begin!r} must start with one of the triggers: "
                f"{', '.join(map(repr, triggers))}"
            )
    return tag


def _structure(item: Any) -> Structure:
    if not isinstance(item, dict) or set(item) != {"begin", "schema", "end"}:
        raise refusal("each of the structures has exactly the fields begin, schema and end")
    if not isinstance(item["begin"], str) or not isinstance(item["end"], str):
        raise refusal("begin and end of a structure must be text")
    if not isinstance(item["schema"], (dict, bool)):
        raise refusal("schema of a structure must be a JSON Schema: an object, true or false")
    return Structure(item["begin"], item["schema"], item["end"])
