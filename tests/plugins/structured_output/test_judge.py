"""Finished texts judged by their schema, against another library, and within bounds."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from hotshoe import LLM, GrammarSpec, SamplingParams
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.types import FinishReason
from hotshoe_structured_output.judge import MAX_WORK, Judge

BOTH = {
    "type": "object",
    "oneOf": [
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"b": {"type": "string", "pattern": "^x+$"}}, "required": ["b"]},
    ],
}
SCHEMAS: list[Any] = [
    BOTH,
    {"oneOf": [{"type": "number"}, {"type": "integer"}, {"minimum": 3}]},
    {"oneOf": [{"maxLength": 2}, {"minLength": 2}, {"type": ["null", "array"]}]},
    {"oneOf": [{"const": 1}, {"enum": [True, 1.0, "x", [1, {"a": None}]]}]},
    {
        "oneOf": [
            {"properties": {"a": {"$ref": "#/$defs/n"}}, "additionalProperties": False},
            {"patternProperties": {"^[ab]$": {"multipleOf": 0.5}}, "minProperties": 1},
        ],
        "$defs": {"n": {"anyOf": [{"type": "null"}, {"exclusiveMinimum": 2}]}},
    },
    {"oneOf": [{"prefixItems": [{"type": "string"}], "items": {"type": "null"}}, {"maxItems": 1}]},
    {"allOf": [{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"maxProperties": 2}]},
    {"items": {"$ref": "#"}, "oneOf": [{"type": "array"}, {"type": "string"}, {"minItems": 2}]},
]
LEAVES = [None, True, False, 0, 1, 1.0, 2.5, 3, -4, 5e-1, "", "x", "xx", "xyz"]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth == 3 or kind < 0.5:
        return rng.choice(LEAVES)
    if kind < 0.7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = rng.sample("abc", rng.randrange(4))
    return {name: random_value(rng, depth + 1) for name in names}


def judge_of(bench, schema: Any) -> Judge:
    spec = GrammarSpec("json_schema", json.dumps(schema), judged=True)
    return bench.compile(spec)._judge


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_texts_are_judged_as_the_standard_says(llguidance_bench, number: int) -> None:
    schema, rng = SCHEMAS[number], random.Random(number)
    judge = judge_of(llguidance_bench, schema)
    standard = jsonschema.Draft202012Validator(schema)
    verdicts = set()
    for _ in range(400):
        value = random_value(rng)
        objection = judge.objection(json.dumps(value).encode())
        assert (objection is None) == standard.is_valid(value), (value, objection)
        verdicts.add(objection is None)
    assert verdicts == {True, False}


def test_work_is_bounded(llguidance_bench) -> None:
    judge = judge_of(llguidance_bench, SCHEMAS[-1])
    assert "too long" in (judge.objection(json.dumps([1] * MAX_WORK).encode()) or "")
    assert "cannot be judged" in (judge.objection(b"[" * 5000 + b"]" * 5000) or "")


def test_schemas_that_need_no_judge_have_none(llguidance_bench) -> None:
    apart = {"oneOf": [{"type": "string"}, {"type": "null"}]}
    assert judge_of(llguidance_bench, apart) is None
    assert llguidance_bench.compile(GrammarSpec.json_schema(apart)).objection(b"1") is None


def test_the_engine_decides_what_is_judged() -> None:
    offered = {"llguidance": "hotshoe_structured_output.llguidance_backend:LLGuidance"}
    spec = GrammarSpec("json_schema", json.dumps(BOTH), judged=True)
    with pytest.raises(Exception, match="'oneOf' has branches 0 and 1"):
        GrammarBackends(offered).choose(spec)
    assert GrammarBackends(offered, judged=True).choose(GrammarSpec.json_schema(BOTH)).judged


def test_a_text_is_judged_before_it_stops() -> None:
    spec = GrammarSpec.json_schema({"oneOf": [{"enum": [1, 12]}, {"enum": [1, 2]}]})
    with LLM("demo", platform="cpu", structured_output_one_of="judged", max_num_seqs=4) as llm:
        [one], [two] = (llm.tokenizer.encode(digit) for digit in "12")
        end = llm.tokenizer.eos_token_id
        # The bias chooses a text: "2" ends as nothing can follow it, "1" by a token of its own.
        for bias, text in (({two: 100.0}, "2"), ({one: 100.0, two: 50.0}, "12")):
            params = SamplingParams(grammar=spec, logit_bias=bias, max_tokens=4)
            [found] = llm.generate(["Say"], params)[0].outputs
            assert (found.text, found.finish_reason) == (text, FinishReason.STOP)
        bias = {one: 100.0, end: 90.0}
        params = SamplingParams(grammar=spec, logit_bias=bias, max_tokens=4)
        [found] = llm.generate(["Say"], params)[0].outputs
        assert (found.text, found.finish_reason) == ("1", FinishReason.ERROR)
        assert found.error == "grammar: the text follows no branch of a oneOf, or several"
        [found] = llm.generate(
            ["Say"], SamplingParams(grammar=spec, max_tokens=1, logit_bias={one: 9.0})
        )[0].outputs
        assert found.finish_reason is FinishReason.LENGTH
