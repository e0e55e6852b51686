"""Drafts beside grammars: the same texts as without, in fewer steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotshoe import LLM, GrammarSpec, SamplingParams

ITEM = {
    "type": "object",
    "properties": {"name": {"enum": ["alpha", "beta"]}, "size": {"enum": [100, 200]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
GRAMMARS = [
    GrammarSpec.json_schema({"type": "array", "items": ITEM, "minItems": 4, "maxItems": 6}),
    GrammarSpec.regex("ab-12;" * 9),
    GrammarSpec.choice(["one one one one one", "two two two two two"]),
]
#: One backend alone serves grammars.
EBNF = GrammarSpec.ebnf('root ::= "xyz " root | "end"')
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}


def texts(llm: LLM, backend: str) -> list[tuple[str, object, list[int]]]:
    grammars = [*GRAMMARS, *([EBNF] if backend == "llguidance" else [])]
    params = [
        SamplingParams(temperature=heat, seed=seed, max_tokens=90, grammar=grammar)
        for seed, grammar in enumerate(grammars)
        for heat in (0.0, 3.0)
    ]
    params.append(SamplingParams(temperature=0, max_tokens=30))
    outputs = llm.generate(["List: a b c a b c a b c"] * len(params), params)
    found = [output.outputs[0] for output in outputs]
    assert all(output.error is None for output in found)
    return [(output.text, output.finish_reason, output.token_ids) for output in found]


@pytest.fixture(scope="module")
def open_demo() -> Callable[..., LLM]:
    pytest.importorskip("hotshoe_demo", reason="hotshoe-demo is not installed")
    return lambda **options: LLM("demo", dtype="float32", max_num_seqs=16, **options)


@pytest.fixture(scope="module")
def expected(open_demo: Callable[..., LLM]) -> list[tuple[str, object, list[int]]]:
    with open_demo() as llm:
        return texts(llm, "llguidance")


@pytest.mark.parametrize(
    ("backend", "overlapping"), [("llguidance", False), ("llguidance", True), ("xgrammar", False)]
)
def test_texts_keep_to_their_grammars(
    open_demo: Callable[..., LLM],
    expected: list[tuple[str, object, list[int]]],
    backend: str,
    overlapping: bool,
) -> None:
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    options = {"structured_output_backend": backend, "async_scheduling": overlapping}
    with open_demo(**options) as llm:
        plain = texts(llm, backend) if backend == "xgrammar" else expected
    with open_demo(speculative_config=NGRAM, **options) as llm:
        assert texts(llm, backend) == plain
        assert llm.stats().num_accepted_tokens > 40


def test_drafts_of_a_model_keep_to_grammars(
    open_demo: Callable[..., LLM], expected: list[tuple[str, object, list[int]]]
) -> None:
    itself = {
        "method": "draft_model",
        "model": "demo",
        "num_speculative_tokens": 5,
        "adaptive": False,
    }
    options = {"structured_output_backend": "llguidance", "async_scheduling": True}
    with open_demo(speculative_config=itself, **options) as llm:
        assert texts(llm, "llguidance") == expected
        assert llm.stats().num_accepted_tokens > 40
