"""Random text within the masks is valid: many schemas, and every other kind of grammar."""

from __future__ import annotations

import json
import random
import re
import secrets
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import tokenizers
from tokenizers import decoders, models

from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import GrammarSpec

FIXED = [f"fixed-{i}" for i in range(15)]
#: Drawn anew in every run; the names of tests may not tell, or workers would collect others.
SESSION = secrets.token_hex(4)
FRESH = [f"fresh-{i}" for i in range(15)]
MANY = [f"fixed-{i}" for i in range(15, 115)] + [f"fresh-{i}" for i in range(15, 115)]
WORDS = ["name", "é", "to do", "a/b", 'q"q', "x_1", "日本", "id", "$ref", "~"]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of keywords that llguidance honors, nested up to three deep."""
    leaves = [_integer, _number, _string, _enum, _simple]
    nested = [_object, _object, _array, _tuple, _any_of, _referring]
    return rng.choice(leaves if depth == 3 else leaves + nested * 2)(rng, depth)


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-500, 500)
    bounds = {"minimum": low, "maximum": low + rng.randint(0, 1000)}
    extra = {"multipleOf": rng.randint(1, 3)} if bounds["maximum"] - low > 3 else {}
    chosen = {name: value for name, value in bounds.items() if rng.random() < 0.6}
    return {"type": "integer", **chosen, **(extra if rng.random() < 0.3 else {})}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = round(rng.uniform(-10, 10), 2)
    bounds = {"exclusiveMinimum": low, "maximum": low + rng.randint(1, 50)}
    return {"type": "number", **{n: v for n, v in bounds.items() if rng.random() < 0.5}}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 4)
    forms = [
        {"minLength": low, "maxLength": low + rng.randint(0, 9)},
        {
            "pattern": rng.choice(
                ["^[a-f]{2,5}$", "^(ab|cd)+x?$", "^\\d{3}-\\d{2}$", "^[^\\n]{1,4}$"]
            )
        },
        {"maxLength": rng.randint(1, 20)},
        {"format": rng.choice(["date", "uuid", "ipv4"])},
    ]
    return {"type": "string", **rng.choice(forms)}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [rng.choice([rng.randint(-9, 9), rng.choice(WORDS), None, True, [1, {"a": 2}]])]
    return (
        {"enum": values + WORDS[: rng.randint(0, 3)]}
        if rng.random() < 0.7
        else {"const": values[0]}
    )


def _simple(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]]), "title": "simple"}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    if rng.random() < 0.7:
        schema["additionalProperties"] = False
    elif rng.random() < 0.5:
        schema["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
        schema["patternProperties"] = {"^p_": {"type": "null"}}
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth + 1),
        "minItems": low,
        "maxItems": low + rng.randint(0, 3),
    }


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def _referring(rng: random.Random, depth: int) -> dict[str, Any]:
    """A reference to be resolved at the root; `whole` adds its target there."""
    return {"$ref": rng.choice(["#/$defs/leaf", "#/$defs/tree"])}


def whole(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    tree = {
        "type": "object",
        "properties": {
            "v": {"$ref": "#/$defs/leaf"},
            "sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
        },
        "required": ["v"],
        "additionalProperties": False,
    }
    return {**random_schema(rng), "$defs": {"leaf": _string(rng, 3), "tree": tree}}


def check_schema(bench, seed: str) -> bool:
    if seed.startswith("fresh"):
        seed = f"{seed}-{SESSION}"
        print(f"schema of seed {seed}")
    schema = whole(seed)
    spec = GrammarSpec.json_schema(schema)
    if bench.backend.refusal(spec) is not None:
        return False
    grammar = bench.compile(spec)
    for number in range(2):
        text = bench.random_text(grammar, number)
        value = json.loads(text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    return True


@pytest.mark.parametrize("seed", FIXED + FRESH)
def test_random_text_follows_a_schema(llguidance_bench, seed: str) -> None:
    assert check_schema(llguidance_bench, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_random_text_follows_many_schemas(llguidance_bench, seed: str) -> None:
    assert check_schema(llguidance_bench, seed)


@pytest.mark.slow
def test_random_text_follows_the_schemas_that_a_backend_takes(bench) -> None:
    assert sum(check_schema(bench, seed) for seed in MANY) > 20


def unlimited(bench, spec: GrammarSpec) -> bool:
    """Whether xgrammar refuses what it would match without a limit."""
    reason = bench.backend.refusal(spec) or ""
    return bench.backend.__class__.__name__ == "XGrammar" and "without a limit" in reason


REGEXES = [
    (r"\d{3}-[a-z]{2,4}", ["123-ab"], ["12-ab", "123-abcde", "123-ab!"]),
    (r"(yes|no)( maybe)?", ["yes", "no maybe"], ["maybe", "yesno"]),
    (r"[A-Z][a-zé]*\.", ["Né."], ["né.", "N"]),
    (r"a{2,}b?", ["aa", "aaaab"], ["a", "ab"]),
    (r"\$\{x\}", ["${x}"], ["$x"]),
    (r"日本?[^a-z]", ["日本1", "日é"], ["本1", "日a"]),
    (r"\(\d+(,\d+)*\)", ["(1)", "(1,22)"], ["()", "(1,)"]),
]


@pytest.mark.parametrize(("pattern", "matches", "others"), REGEXES)
def test_regular_expressions(bench, pattern: str, matches, others) -> None:
    spec = GrammarSpec.regex(pattern)
    if unlimited(bench, spec):
        return
    grammar = bench.compile(spec)
    assert [bench.accepts(grammar, text) for text in matches] == [True] * len(matches)
    assert [bench.accepts(grammar, text) for text in others] == [False] * len(others)
    for seed in range(5):
        assert re.fullmatch(pattern, bench.random_text(grammar, seed))


GRAMMARS = {
    "arithmetic": (
        'root ::= expr\nexpr ::= term (("+"|"-") term)*\nterm ::= [0-9]+ | "(" expr ")"',
        ["1+2", "(1-2)+33"],
        ["1+", "(1", ""],
    ),
    "left recursion": ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
    "blanks": ('root ::= "x" ws "y" # a comment\nws ::= [ \\t\\n]*', ["xy", "x \ty"], ["x"]),
    "counts": ('root ::= "a"{2,3} [^b-z]+ "é"?', ["aa1", "aaa1é"], ["a1", "aab"]),
    "dashes": ('root ::= my-rule\nmy-rule ::= "a\\"\\n"', ['a"\n'], ["a"]),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(bench, name: str) -> None:
    text, matches, others = GRAMMARS[name]
    spec = GrammarSpec.ebnf(text)
    if unlimited(bench, spec):
        return
    grammar = bench.compile(spec)
    assert [bench.accepts(grammar, text) for text in matches] == [True] * len(matches)
    assert [bench.accepts(grammar, text) for text in others] == [False] * len(others)


CHOICES = ["a", "ab", 'é\n"x"', "\\d+", "<tool_call>x", "a/b", "日本", "\x01", "<|im_end|>"]


def test_choices(bench) -> None:
    grammar = bench.compile(GrammarSpec.choice(CHOICES))
    for text in CHOICES[:-1]:
        assert bench.accepts(grammar, text)
    for text in ("b", "abc", "12", "a/"):
        assert not bench.accepts(grammar, text)
    assert {bench.random_text(grammar, seed) for seed in range(60)} <= set(CHOICES)


def test_special_tokens_never_spell_text(bench) -> None:
    grammar = bench.compile(GrammarSpec.choice(["<|im_end|>"]))
    [end] = bench.encode("<|im_end|>")
    matcher = grammar.matcher()
    assert end not in bench.allowed(matcher)
    assert not matcher.accept(end)


def test_any_object(bench) -> None:
    grammar = bench.compile(GrammarSpec.json_object())
    assert bench.accepts(grammar, '{"a": [1, {"b": null}]}')
    assert not bench.accepts(grammar, "[1]")
    for seed in range(5):
        assert isinstance(json.loads(bench.random_text(grammar, seed)), dict)


def test_a_property_cannot_be_hidden_behind_another_spelling(bench) -> None:
    schema = {"type": "object", "properties": {"ab": {"type": "integer"}}}
    grammar = bench.compile(GrammarSpec.json_schema(schema))
    assert bench.accepts(grammar, '{"ab":1}')
    for text in ('{"\\u0061b":"x"}', '{"ab":1,"ab":"x"}', '{"a\\u0062":null}'):
        assert not bench.accepts(grammar, text)


@pytest.mark.parametrize(
    ("max_blanks", "texts", "others"),
    [
        (None, ["[1,2]", "[ 1, 2\n]"], ["[  1]", "[1, \n2]", " []", "[] "]),
        (0, ["[1,2]"], ["[1, 2]", "[ 1]", "[\n]"]),
        (3, ["[1,2]", "[   1 ,\n 2]"], ["[    1]", " []"]),
    ],
)
def test_blanks_are_bounded(bench, max_blanks, texts, others) -> None:
    schema = {"type": "array"}
    call = {"begin": "<a>", "schema": schema, "end": "</a>"}
    tag = {"structures": [call], "triggers": ["<a>"]}
    plain = replace(GrammarSpec.json_schema(schema), max_blanks=max_blanks)
    tagged = replace(GrammarSpec.structural_tag(tag), max_blanks=max_blanks)
    for spec, begin, end in ((plain, "", ""), (tagged, "<a>", "</a>")):
        if max_blanks == 0 and bench.backend.__class__.__name__ == "XGrammar":
            assert bench.backend.refusal(spec) == "JSON without any blanks is not supported"
            continue
        grammar = bench.compile(spec)
        assert [t for t in texts if not bench.accepts(grammar, begin + t + end)] == []
        assert [t for t in others if bench.accepts(grammar, begin + t + end)] == []


CALL = {
    "begin": '<tool_call>\n{"name": "add", "arguments": ',
    "schema": {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "end": "}\n</tool_call>",
}
TAG = {"structures": [CALL], "triggers": ["<tool_call>"]}
CALLED = '<tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("options", "texts", "others"),
    [
        ({}, ["", "hi", CALLED, f"I: {CALLED} and {CALLED}.", "<tool"], []),
        ({"at_least_one": True}, [CALLED, f"{CALLED} and"], ["", "hi", f"hi {CALLED}"]),
        ({"stop_after_first": True}, ["hi", f"hi {CALLED}"], [CALLED * 2, f"{CALLED} and"]),
        ({"at_least_one": True, "stop_after_first": True}, [CALLED], ["", f"a{CALLED}"]),
    ],
    ids=["free", "at least one", "stop after first", "exactly one"],
)
def test_sections_between_tags(bench, options, texts, others) -> None:
    grammar = bench.compile(GrammarSpec.structural_tag(TAG | options))
    never = [
        "<tool_call> x",
        CALLED.replace('"x":1', '"x":100'),
        CALLED.replace("add", "sub"),
        CALLED[:-1],
    ]
    assert [bench.accepts(grammar, text) for text in texts] == [True] * len(texts)
    refused = [*others, *(f"hi {text}" for text in never), *never]
    assert [bench.accepts(grammar, text) for text in refused] == [False] * len(refused)


def test_sections_or_else_json(bench) -> None:
    number = {"type": "integer", "minimum": 10, "maximum": 99}
    options = {"at_least_one": True, "stop_after_first": True, "otherwise": number}
    grammar = bench.compile(GrammarSpec.structural_tag(TAG | options))
    for text in (CALLED, "42"):
        assert bench.accepts(grammar, text), text
    for text in ("", "7", "hi", f"42{CALLED}", f"{CALLED} and", CALLED.replace("add", "sub")):
        assert not bench.accepts(grammar, text), text


def test_several_openings(bench) -> None:
    structure = {"begin": "1", "schema": {"type": "null"}, "end": ""}
    tag = {"structures": [structure], "triggers": ["<a>", "<b>"], "opening": ["<a>[", "<b>["]}
    tag |= {"separator": ", ", "closing": "]"}
    free = bench.compile(GrammarSpec.structural_tag(tag))
    for text in ("hi", "<a>[1null]", "so <b>[1null, 1null] and <a>[1null]"):
        assert bench.accepts(free, text), text
    only = bench.compile(
        GrammarSpec.structural_tag(tag | {"at_least_one": True, "stop_after_first": True})
    )
    assert bench.accepts(only, "<b>[1null]") and bench.accepts(only, "<a>[1null, 1null]")
    for text in ("<a>", "<b>[2null]", "so <b>[1null]x <b>]"):
        assert not bench.accepts(free, text), text
        assert not bench.accepts(only, text), text


def test_random_calls_follow_their_schema(bench) -> None:
    tag = TAG | {"at_least_one": True, "stop_after_first": True}
    grammar = bench.compile(GrammarSpec.structural_tag(tag))
    for seed in range(5):
        text = bench.random_text(grammar, seed)
        inside = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
        assert 0 <= json.loads(inside)["arguments"]["x"] <= 99


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """A SentencePiece-like tokenizer: a few pieces, all else byte by byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["▁", "a", "b", '"', "{", "}", ":", "▁a", '▁"', "<0", "x", "0", "A", ">", "é"]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True
    )
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens(["<s>", "</s>"])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"}, {})


def test_byte_tokens_are_bytes(bench, byte_fallback: Tokenizer) -> None:
    vocabulary = vocabulary_of(byte_fallback, 288, byte_fallback.eos_token_ids)
    assert vocabulary.tokens[3 + 0x0A] == b"\n"
    assert vocabulary.special == {"<s>": 1, "</s>": 2}
    assert vocabulary.tokens[280:] == (b"",) * 8
    own = type(bench)(bench.backend, bench.backend.open(vocabulary), vocabulary, bench.encode)
    newline, literal = (own.compile(GrammarSpec.regex(r)) for r in (r"\n", "<0x0A>"))
    assert own.allowed(newline.matcher()).tolist() == [3 + 0x0A]
    assert 3 + 0x0A not in own.allowed(literal.matcher())
    assert own.random_text(literal, 0) == "<0x0A>"


def test_text_is_spelt_byte_by_byte(bench, byte_fallback: Tokenizer) -> None:
    vocabulary = vocabulary_of(byte_fallback, 288, byte_fallback.eos_token_ids)
    own = type(bench)(bench.backend, bench.backend.open(vocabulary), vocabulary, bench.encode)
    texts = ["日本 é\n", "🙂"]
    enum = own.compile(GrammarSpec.json_schema({"enum": texts}))
    free = own.compile(GrammarSpec.json_schema({"type": "string"}))
    for seed in range(10):
        assert json.loads(own.random_text(enum, seed)) in texts
        assert isinstance(json.loads(own.random_text(free, seed)), str)
