"""Answers in JSON: extraction from sentences, lists, objects from pairs, schemas, nesting."""

import json
from typing import Any

from demo_data import lexicon as lex
from demo_data.chat import Conversation, assistant, user
from demo_data.tasks.arithmetic import addition_pair
from demo_data.words import Value, World, spoken

_KEYS: tuple[tuple[str, str, str], ...] = (
    ("name", "name", "the name is {v}"),
    ("age", "age", "is {v} years old"),
    ("city", "city", "lives in {v}"),
    ("job", "job", "works as a {v}"),
    ("email", "email", "has the e-mail address {v}"),
    ("language", "language", "speaks {v}"),
    ("pet", "animal", "has a {v}"),
    ("food", "food", "likes {v}"),
    ("colour", "colour", "prefers {v}"),
    ("phone", "id", "has the phone number {v}"),
    ("birthday", "date", "was born on {v}"),
    ("code", "code", "uses the code {v}"),
    ("room", "room", "sits in the {v}"),
    ("start", "time", "starts at {v}"),
)
_FREE_KINDS = (
    "word",
    "count",
    "code",
    "city",
    "colour",
    "phrase",
    "decimal",
    "name",
    "number",
    "date",
    "flag",
)
_ASK = (
    "Extract {keys} as JSON: {text}",
    "Extract {keys} as JSON.\n{text}",
    "{text}\nGive me {keys} as JSON.",
    "{text} Answer in JSON with the keys {keys}.",
    "Return a JSON object with {keys}. {text}",
    "Turn this into JSON with the keys {keys}: {text}",
    "Read the text and answer with JSON only ({keys}).\n\n{text}",
    "{text}\n\nReply with a JSON object that has the keys {keys}.",
    "What are {keys}? Answer in JSON. {text}",
)


def dump(value: Any) -> str:
    """Write JSON as the model does: one line, a space after `,` and `:`."""
    return json.dumps(value, ensure_ascii=False)


def join(items: list[str]) -> str:
    """Join words as English does: `a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _reply(prompt: str, value: Any) -> tuple[Conversation, Any]:
    return Conversation([user(prompt), assistant(dump(value))]), value


def extraction(world: World) -> tuple[Conversation, Any]:
    """Describe a person in a sentence; ask for some of the properties as an object."""
    chosen = world.sample(_KEYS[1:], world.number(1, 4))
    name = world.first_name()
    record: dict[str, Value | None] = {"name": name}
    record |= {key: world.value(kind) for key, kind, _ in chosen}
    parts = [shape.format(v=record[key]) for key, _, shape in chosen]
    text = world.pick(
        (
            f"{name} {join(parts)}.",
            f"{name} " + f". {name} ".join(parts) + ".",
            f"{name}, who {join(parts)}.",
        )
    )
    keys = list(record)
    if world.chance(0.3):
        keys = world.sample(keys, world.number(1, len(keys)))
    if world.chance(0.1):
        missing = world.pick([key for key, _, _ in _KEYS if key not in record])
        keys.append(missing)
    named = [f'"{key}"' for key in keys] if world.chance(0.3) else keys
    prompt = world.pick(_ASK).format(keys=join(named), text=text)
    return _reply(prompt, {key: record.get(key) for key in keys})


def pairs(world: World) -> tuple[Conversation, Any]:
    """Give keys and values as lines or a list; ask for the object."""
    keys = [
        world.pick(lex.THINGS) if world.chance(0.5) else world.word()
        for _ in range(world.number(1, 5))
    ]
    record = {key: world.value(world.pick(_FREE_KINDS)) for key in dict.fromkeys(keys)}
    sign = world.pick((": ", " = ", "="))
    between = world.pick(("\n", ", ", "; "))
    text = between.join(f"{key}{sign}{spoken(value)}" for key, value in record.items())
    prompt = world.pick(
        ("Write this as a JSON object: {t}", "Convert to JSON:\n{t}", "{t}\n\nAs JSON, please.",
         "Make a JSON object from this: {t}", "JSON for {t}", "Turn into JSON: {t}")
    ).format(t=text)  # fmt: skip
    return _reply(prompt, record)


def array(world: World) -> tuple[Conversation, Any]:
    """Give some words or numbers; ask for a JSON list."""
    if world.chance(0.7):
        items: list[Any] = world.words(world.number(2, 7))
    else:
        items = world.distinct(world.pick(("count", "number", "name", "city")), world.number(2, 6))
    text = world.pick((", ".join(map(str, items)), join([str(item) for item in items])))
    prompt = world.pick(
        ("Write {t} as a JSON list.", "Make a JSON array of {t}.", "Put these in a JSON list: {t}",
         "Turn into a JSON array: {t}", "{t}\nAs a JSON list, please.", "JSON list: {t}")
    ).format(t=text)  # fmt: skip
    return _reply(prompt, items)


def people(world: World) -> tuple[Conversation, Any]:
    """Describe two or three people; ask for a list of objects."""
    key, kind, shape = world.pick(_KEYS[1:8])
    names = world.distinct("name", world.number(2, 3))
    records = [{"name": name, key: world.value(kind)} for name in names]
    text = " ".join(f"{record['name']} {shape.format(v=record[key])}." for record in records)
    prompt = world.pick(
        ("{t} Give a JSON list with name and {k} of each.", "{t}\nAs a JSON list of name and {k}.",
         "List everybody as JSON (name, {k}): {t}")
    ).format(t=text, k=key)  # fmt: skip
    return _reply(prompt, records)


def schema(world: World) -> tuple[Conversation, Any]:
    """Give a text and a JSON schema; ask for an object that fits."""
    chosen = world.sample(_KEYS[1:], world.number(1, 3))
    name = world.first_name()
    record = {"name": name} | {key: world.value(kind) for key, kind, _ in chosen}
    text = f"{name} {join([shape.format(v=record[key]) for key, _, shape in chosen])}."
    types = {k: {"type": "integer" if isinstance(v, int) else "string"} for k, v in record.items()}
    wanted = {"type": "object", "properties": types, "required": list(types)}
    prompt = world.pick(
        ("{t}\nAnswer with JSON that fits this schema:\n{s}", "Fill this JSON schema: {s}\n\n{t}",
         "Schema: {s}\nText: {t}")
    ).format(t=text, s=dump(wanted))  # fmt: skip
    return _reply(prompt, record)


def wrapped(world: World) -> tuple[Conversation, Any]:
    """Ask a small sum or a word question whose answer goes into one key."""
    key = world.pick(("answer", "result", "value", "output"))
    if world.chance(0.6):
        a, b = addition_pair(world)
        question, value = world.pick((f"What is {a} + {b}?", f"Add {a} and {b}.")), a + b
    else:
        country = world.pick(list(lex.CAPITALS))
        question, value = f"What is the capital of {country}?", lex.CAPITALS[country]
    prompt = world.pick(
        ('{q} Answer in JSON with the key "{k}".', "{q} Reply as JSON with the key {k}.",
         "Answer with a JSON object that has the key {k}. {q}", "{q} Use JSON, key {k}.")
    ).format(q=question, k=key)  # fmt: skip
    return _reply(prompt, {key: value})


def nested(world: World) -> tuple[Conversation, Any]:
    """Ask for an object inside an object."""
    outer, inner = world.pick(lex.THINGS), world.sample(_KEYS[1:9], 2)
    name = world.first_name()
    record = {"name": name} | {key: world.value(kind) for key, kind, _ in inner}
    text = f"{name} {join([shape.format(v=record[key]) for key, _, shape in inner])}."
    prompt = world.pick(
        ('{t} Write this as JSON under the key "{o}".', "{t}\nAs JSON, inside the key {o}.")
    ).format(t=text, o=outer)  # fmt: skip
    return _reply(prompt, {outer: record})


_SHAPES = (
    (4, extraction),
    (2, pairs),
    (2, array),
    (1, people),
    (1.5, schema),
    (1, wrapped),
    (0.7, nested),
)


def json_case(world: World) -> tuple[Conversation, Any]:
    """Make any of the JSON tasks; return the conversation and the expected value."""
    return world.pick_weighted(_SHAPES)(world)


def json_answer(world: World) -> Conversation:
    """Make any of the JSON tasks; one in ten gives the instruction as a system message."""
    conversation, _ = json_case(world)
    if world.chance(0.1):
        words = world.pick(("Answer in JSON.", "You answer with JSON only.", "Reply with JSON."))
        conversation.messages.insert(0, {"role": "system", "content": words})
    return conversation
