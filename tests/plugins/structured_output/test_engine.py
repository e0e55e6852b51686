"""Structured output through the engine: the demo model, so hot that only grammars give it form."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import jsonschema
import pytest

from hotshoe import LLM, AsyncEngine, EngineConfig, GrammarSpec, SamplingParams
from hotshoe.errors import ConfigError, RequestError
from hotshoe.types import FinishReason
from hotshoe_structured_output.llguidance_backend import LLGuidance

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "kites"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
GRAMMARS = [
    GrammarSpec.json_schema(PERSON),
    GrammarSpec.json_schema(SMALL),
    GrammarSpec.regex(r"\d{2}-[a-z]{3}"),
    GrammarSpec.choice(["red", "green", "blue"]),
    GrammarSpec.ebnf('root ::= "(" root ")" | "x"'),
]


@pytest.fixture(scope="module", params=[False, True], ids=["stepwise", "overlapped"])
def llm(request: pytest.FixtureRequest):
    pytest.importorskip("hotshoe_demo", reason="hotshoe-demo is not installed")
    with LLM("demo", max_num_seqs=64, async_scheduling=request.param) as opened:
        yield opened


def hot(grammar: GrammarSpec | None = None, seed: int = 1, **more) -> SamplingParams:
    settings = {"temperature": 4.0, "max_tokens": 200, **more}
    return SamplingParams(grammar=grammar, seed=seed, **settings)


def run(llm: LLM, params: SamplingParams, prompt: str = "Once"):
    [output] = llm.generate(prompt, params)
    return output.outputs[0]


def test_a_schema_gives_form(llm: LLM) -> None:
    for seed in range(3):
        output = run(llm, hot(GRAMMARS[0], seed))
        jsonschema.validate(json.loads(output.text), PERSON)
        assert output.finish_reason is FinishReason.STOP
        assert output.stop_reason is None


def test_free_text_ends_within_its_tokens(llm: LLM) -> None:
    end = llm.tokenizer.encode(" the end.", add_special_tokens=False)
    assert len(end) > 1
    for limit in (0, 7):
        found = run(llm, hot(GrammarSpec.text([end], limit), max_tokens=40))
        free = run(llm, hot(max_tokens=40))
        assert found.token_ids[: limit + len(end)] == free.token_ids[:limit] + end
        assert len(found.token_ids) > limit + len(end)
    after = replace(GRAMMARS[3], after=(tuple(end),), free_tokens=5)
    found = run(llm, hot(after, max_tokens=40))
    assert found.text.partition(" the end.")[2] in ("red", "green", "blue")


def test_a_mixed_batch_leaves_free_rows_as_they_are(llm: LLM) -> None:
    alone = [run(llm, hot(seed=i, max_tokens=20)).token_ids for i in range(8)]
    params = [
        hot(seed=i // 8, max_tokens=20) if i % 8 == 0 else hot(GRAMMARS[i % 5], i, max_tokens=60)
        for i in range(64)
    ]
    outputs = [o.outputs[0] for o in llm.generate(["Once"] * 64, params)]
    assert [outputs[i * 8].token_ids for i in range(8)] == alone
    for i in set(range(64)) - set(range(0, 64, 8)):
        assert outputs[i].error is None
    for i in range(1, 6):
        assert outputs[i].text == run(llm, params[i]).text


def test_sequences_of_one_request(llm: LLM) -> None:
    [output] = llm.generate("Once", hot(GRAMMARS[3], n=8))
    assert {sequence.text for sequence in output.outputs} <= {"red", "green", "blue"}
    assert len({sequence.text for sequence in output.outputs}) > 1


def token(llm: LLM, text: str) -> int:
    [token_id] = llm.tokenizer.encode(text, add_special_tokens=False)
    return token_id


def test_reasoning_is_free_and_the_answer_is_not(llm: LLM) -> None:
    end = token(llm, "</think>")
    grammar = GrammarSpec.json_schema(SMALL, after=[[end]])
    prompt = "<think>earlier</think> 7 <think>"
    output = run(llm, hot(grammar, logit_bias={end: 100.0}), prompt)
    _, _, answer = output.text.partition("</think>")
    assert "</think>" not in answer
    assert 0 <= json.loads(answer) <= 99
    without = run(llm, hot(grammar, max_tokens=5, logit_bias={end: -100.0}), prompt)
    assert without.finish_reason is FinishReason.LENGTH
    assert not without.text.strip().isdigit()


def test_a_tool_call_within_free_text(llm: LLM) -> None:
    begin = token(llm, "<tool_call>")
    structure = {"begin": "<tool_call>\n", "schema": SMALL, "end": "\n</tool_call>"}
    tag = {"structures": [structure], "triggers": ["<tool_call>"], "stop_after_first": True}
    grammar = GrammarSpec.structural_tag(tag)
    output = run(llm, hot(grammar, logit_bias={begin: 100.0}))
    _, _, call = output.text.partition("<tool_call>\n")
    assert 0 <= json.loads(call.removesuffix("\n</tool_call>")) <= 99
    assert output.finish_reason is FinishReason.STOP


def test_streaming_gives_the_same(llm: LLM) -> None:
    params = hot(GRAMMARS[0], seed=5)
    updates = list(llm.stream("Once", params))
    text = "".join(update.sequences[0].new_text for update in updates)
    assert text == run(llm, params).text
    jsonschema.validate(json.loads(text), PERSON)


def test_log_probabilities_cover_every_token(llm: LLM) -> None:
    output = run(llm, hot(GRAMMARS[0], logprobs=1))
    assert [x.token_ids[0] for x in output.logprobs] == output.token_ids


def test_max_tokens_ends_with_length(llm: LLM) -> None:
    output = run(llm, hot(GRAMMARS[0], max_tokens=3))
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == 3


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"grammar": GrammarSpec.regex("ab"), "min_tokens": 50}, "but min_tokens is 50"),
        ({"grammar": GrammarSpec.regex("ab"), "allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"grammar": GrammarSpec.regex("(")}, "cannot be compiled: invalid regex"),
        ({"grammar": GrammarSpec.regex("(?=a)b")}, "look-around"),
        ({"grammar": GrammarSpec.ebnf("root ::= foo")}, "rule 'foo' is not there"),
        ({"grammar": GrammarSpec.ebnf("%llguidance {}\nstart: %llguidance")}, "may not contain"),
        (
            {"grammar": GrammarSpec.json_schema({**SMALL, "minimum": 100})},
            "greater than",
        ),
    ],
)
def test_a_failing_request_fails_alone(llm: LLM, params, error: str) -> None:
    good = hot(GRAMMARS[3])
    bad, fine = llm.generate(["Once"] * 2, [hot(**params), good])
    assert bad.outputs[0].finish_reason is FinishReason.ERROR
    assert error in bad.outputs[0].error
    assert fine.outputs[0].text in ("red", "green", "blue")


@pytest.mark.parametrize(
    ("grammar", "match"),
    [
        (GrammarSpec.json_schema({"type": "array", "uniqueItems": True}), "'uniqueItems'"),
        (GrammarSpec.json_schema("{"), "not JSON"),
        (GrammarSpec("regex", "a", backend="outlines"), "choices: llguidance, xgrammar"),
        (GrammarSpec.structural_tag("[]"), "a structural tag is a JSON object"),
    ],
)
def test_a_refused_request_is_refused_at_once(llm: LLM, grammar, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        llm.generate("Once", hot(grammar))
    assert caught.value.field == "grammar"


DEEP: dict = {"type": "integer"}
for _ in range(45):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}
PATHOLOGICAL = {
    "many values": GrammarSpec.json_schema({"enum": [f"value{i}" for i in range(15_000)]}),
    "many choices": GrammarSpec.choice([f"value{i}" for i in range(15_000)]),
    "deep": GrammarSpec.json_schema(DEEP),
    "long": GrammarSpec.json_schema({"type": "string", "minLength": 10**8, "maxLength": 10**9}),
    "wide": GrammarSpec.json_schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1990)}}
    ),
    "many items": GrammarSpec.json_schema(
        {"type": "array", "items": SMALL, "minItems": 10**6, "maxItems": 10**8}
    ),
    "many objects": GrammarSpec.json_schema(
        {
            "anyOf": [
                {"type": "object", "properties": {f"p{i}_{j}": SMALL for j in range(5)}}
                for i in range(700)
            ]
        }
    ),
    "exponential": GrammarSpec.regex("(a|aa|aaa)*b(x?){40}x{40}"),
    "repeated repetition": GrammarSpec.regex("((a{1,300}){1,300}){1,300}"),
    "a million letters": GrammarSpec.regex("[a-z]{1000000}"),
    "many states": GrammarSpec.regex("(.*a.{30})|(.*b.{30})|(.*c.{30})"),
    "ambiguous": GrammarSpec.ebnf('root ::= root root | "a" | ""'),
    "many ambiguous": GrammarSpec.ebnf('root ::= (x x x x x x)*\nx ::= [a-z ]* | x "b" x | ""'),
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_pathological_grammar_does_not_stop_others(llm: LLM, name: str) -> None:
    begin = time.perf_counter()
    bad, fine = llm.generate(
        ["Once"] * 2, [hot(PATHOLOGICAL[name], max_tokens=20), hot(GRAMMARS[3])]
    )
    assert bad.outputs[0].finish_reason is not None
    assert fine.outputs[0].text in ("red", "green", "blue")
    assert time.perf_counter() - begin < 120


def test_preemption_changes_nothing(llm: LLM) -> None:
    long = replace(GRAMMARS[0], max_blanks=40)
    params = [hot(long, seed=i, max_tokens=60) for i in range(12)]
    expected = [o.outputs[0].token_ids for o in llm.generate(["Once"] * 12, params)]
    core = llm.engine.core
    token_bytes = core.info.block_bytes // llm.config.block_size
    with LLM(
        "demo",
        max_model_len=96,
        max_num_seqs=8,
        block_size=16,
        kv_cache_memory_bytes=14 * 16 * token_bytes,
        enable_prefix_caching=False,
        async_scheduling=llm.config.async_scheduling,
    ) as small:
        found = [o.outputs[0].token_ids for o in small.generate(["Once"] * 12, params)]
        assert small.engine.core.stats().num_preemptions > 0
    assert found == expected


def test_an_aborted_request_frees_everything(llm: LLM) -> None:
    stream = llm.stream("Once", hot(GrammarSpec.json_object(), max_tokens=100))
    next(stream)
    stream.close()
    llm.engine.add("x", "Once", hot(GrammarSpec.regex("[a-z]{5}")))
    llm.engine.abort("x")
    while llm.engine.has_work():
        llm.engine.step()
    assert llm.engine.core.stats().num_running == 0
    assert run(llm, hot(GRAMMARS[3])).error is None


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_a_backend_can_be_chosen(llm: LLM, backend: str) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    spec = GrammarSpec("regex", r"\d{3}", backend=backend)
    assert run(llm, hot(spec)).text.isdigit()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "its library is not installed: pip install llguidance"
    monkeypatch.setattr(LLGuidance, "missing", lambda self: missing)
    with pytest.raises(ConfigError, match=r"backend llguidance: .*pip install llguidance"):
        LLM("demo", structured_output_backend="llguidance")
    with LLM("demo", max_num_seqs=2) as llm, pytest.raises(RequestError, match=missing):
        llm.generate("Once", hot(GrammarSpec.json_schema({"pattern": "a"})))


def test_an_unknown_backend_is_an_error_at_start() -> None:
    with pytest.raises(ConfigError, match="did you mean xgrammar"):
        LLM("demo", structured_output_backend="xgramar")


def test_behind_asyncio() -> None:
    async def collect() -> list[str]:
        engine = AsyncEngine(EngineConfig(max_num_seqs=8))

        async def one(seed: int) -> str:
            text = ""
            async for update in engine.generate("Once", hot(GRAMMARS[0], seed)):
                text += update.sequences[0].new_text
            return text

        try:
            return await asyncio.gather(*(one(seed) for seed in range(6)))
        finally:
            engine.close()

    for text in asyncio.run(collect()):
        jsonschema.validate(json.loads(text), PERSON)
