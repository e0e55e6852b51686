r"""Structural tags: text that is free but for sections whose content follows a schema.

One description serves both backends and tool calls:

    {"structures": [{"begin": "<tool_call>\n", "schema": {...}, "end": "\n</tool_call>"}],
     "triggers": ["<tool_call>"]}

What stands between `begin` and `end` follows `schema`, or consists of `parts`, one after another:
{"text": TEXT}, {"schema": SCHEMA}, {"regex": PATTERN}, {"until": TEXT} for free text with this at
its end, and {"either": [PARTS, ...]}, where no parts at all make the others optional. Before
a `regex` or an `until` there is a text, or nothing but `begin`.

Text is free until it contains a trigger. The trigger opens a section: `opening` (or one of
several), one of the structures, further ones each after `separator` if there is one, then
`closing`; text is free again behind it. `at_least_one` makes the text begin with a section,
`stop_after_first` end with it. Free text holds no special tokens but those of `marks`. What
`leading` lists is a trigger only where free text begins, at first or behind a mark. `preface` has
the two marks around what may come before a section that must, and `otherwise` the schema of a text
without a section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe_structured_output.schema import Schema, parse_json, refusal

MAX_STRUCTURES = 256
#: Structures behind each trigger, together.
MAX_ANNOUNCED = 1024
MAX_TEXTS = {"openings": 4, "triggers": 64, "leading": 4, "marks": 64, "preface": 2}
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "type": (str,),
    "structures": (list,),
    "triggers": (list,),
    "opening": (str, list),
    "separator": (str, type(None)),
    "closing": (str,),
    "at_least_one": (bool,),
    "stop_after_first": (bool,),
    "leading": (list,),
    "marks": (list,),
    "preface": (list,),
    "otherwise": (dict, bool),
}
#: What the value of a part must be: in words, and its types.
_PARTS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "text": ("text", (str,)),
    "schema": ("a JSON Schema: an object, true or false", (dict, bool)),
    "regex": ("text, and not empty", (str,)),
    "until": ("text, and not empty", (str,)),
    "either": ("a list of lists of parts", (list,)),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a section, of a kind named above; the value of `either` is a tuple of `Parts`."""

    kind: str
    value: Any


Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """A section's content between its marks."""

    begin: str
    parts: Parts
    end: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """See the module. Each structure is announced behind at least one of the openings."""

    structures: tuple[Structure, ...]
    triggers: tuple[str, ...]
    openings: tuple[str, ...] = ("",)
    separator: str | None = None
    closing: str = ""
    at_least_one: bool = False
    stop_after_first: bool = False
    leading: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    preface: tuple[str, ...] = ()
    otherwise: Schema | None = None

    @property
    def schemas(self) -> list[Schema]:
        """All schemas in it."""
        own = [part.value for part in self.parts() if part.kind == "schema"]
        return own if self.otherwise is None else [*own, self.otherwise]

    def parts(self) -> Iterator[Part]:
        """Visit all parts of all structures."""
        todo = [structure.parts for structure in self.structures]
        while todo:
            for part in todo.pop():
                yield part
                if part.kind == "either":
                    todo += part.value

    def announced_by(self, trigger: str) -> list[tuple[str, int]]:
        """Return what may follow a trigger, each with the index of the structure it begins."""
        found = []
        for opening in self.openings:
            for i, structure in enumerate(self.structures):
                begin = opening + structure.begin
                if begin.startswith(trigger):
                    found.append((begin[len(trigger) :], i))
        return found


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
        if not isinstance(found, wanted):
            raise refusal(f"{name} of a structural tag must be a {wanted[0].__name__}")
    structures = tuple(_structure(item) for item in value.pop("structures", ()))
    if not 0 < len(structures) <= MAX_STRUCTURES:
        raise refusal(f"a structural tag takes 1 to {MAX_STRUCTURES} structures")
    opening = value.pop("opening", "")
    value["openings"] = [opening] if isinstance(opening, str) else opening
    for name in MAX_TEXTS:
        value[name] = _texts(name, value.get(name, []))
    value.pop("type", None)
    tag = StructuralTag(structures, **value)
    _check(tag)
    return tag


def _texts(name: str, found: list[Any]) -> tuple[str, ...]:
    if len(found) > MAX_TEXTS[name] or not all(isinstance(text, str) for text in found):
        raise refusal(f"{name} of a structural tag takes up to {MAX_TEXTS[name]} texts")
    if name != "openings" and not all(text.strip() for text in found):
        raise refusal(f"{name} of a structural tag takes no empty text")
    return tuple(found)


def _check(tag: StructuralTag) -> None:
    if not tag.triggers or not tag.openings:
        raise refusal("a structural tag takes at least one trigger and one opening")
    if tag.leading and not tag.stop_after_first:
        raise refusal("leading of a structural tag needs stop_after_first")
    if len(tag.preface) not in (0, 2) or (tag.preface and not tag.at_least_one):
        raise refusal("preface of a structural tag takes two texts, and needs at_least_one")
    if tag.otherwise is not None and not (tag.at_least_one and tag.stop_after_first):
        raise refusal("otherwise of a structural tag needs at_least_one and stop_after_first")
    found = [i for trigger in tag.triggers + tag.leading for _, i in tag.announced_by(trigger)]
    if len(found) > MAX_ANNOUNCED:
        raise refusal(f"triggers of a structural tag announce more than {MAX_ANNOUNCED} structures")
    announced = set(found)
    for i, structure in enumerate(tag.structures):
        if i not in announced:
            raise refusal(
                f"{tag.openings[0] + structure.begin!r} must start with one of the triggers: "
                f"{', '.join(map(repr, tag.triggers))}"
            )


def _structure(item: Any) -> Structure:
    fields = set(item) if isinstance(item, dict) else set()
    if fields not in ({"begin", "schema", "end"}, {"begin", "parts", "end"}):
        raise refusal(
            "each of the structures has exactly the fields begin, schema (or parts) and end"
        )
    if not isinstance(item["begin"], str) or not isinstance(item["end"], str):
        raise refusal("begin and end of a structure must be text")
    found = (
        _parts(item["parts"], "text") if "parts" in item else (_part({"schema": item["schema"]}),)
    )
    return Structure(item["begin"], found, item["end"])


def _parts(items: Any, before: str = "") -> Parts:
    if not isinstance(items, list):
        raise refusal("parts of a structure must be a list")
    parts = tuple(map(_part, items))
    for part in parts:
        if part.kind in ("regex", "until") and before != "text":
            raise refusal(f"before {part.kind} of a structure there must be text")
        before = part.kind
    return parts


def _part(item: Any) -> Part:
    if not isinstance(item, dict) or len(item) != 1 or not item.keys() <= _PARTS.keys():
        raise refusal(f"each part of a structure has one field of: {', '.join(_PARTS)}")
    ((kind, value),) = item.items()
    words, wanted = _PARTS[kind]
    if not isinstance(value, wanted) or not (value or kind in ("text", "schema")):
        raise refusal(f"{kind} of a structure must be {words}")
    return Part(kind, tuple(map(_parts, value)) if kind == "either" else value)
