"""The bundled model through the real engine: what it knows, and what int8 costs it."""

import math
from collections.abc import Iterator

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe_demo import heldout, scoring

WINDOW = 512
NUM_WINDOWS = 24
#: kind of case -> (score it earns, share that must be right)
BARS = {
    "addition": ("addition", 0.95),
    "fact": ("fact", 0.90),
    "tool_call": ("tool_call", 0.95),
    "json": ("json_valid", 0.95),
}
NUM_CASES = 40


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def demo(request: pytest.FixtureRequest) -> Iterator[LLM]:
    options = {} if request.param == "bfloat16" else {"quantization": request.param}
    with LLM("demo", platform="cpu", max_num_seqs=32, **options) as llm:
        yield llm


def perplexity(llm: LLM) -> float:
    """Judge held-out text in windows, each token but the first of its window."""
    ids = llm.tokenizer.encode(heldout.text())
    starts = range(0, WINDOW * NUM_WINDOWS, WINDOW)
    windows = [TokensPrompt(ids[i : i + WINDOW]) for i in starts]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    total, count = 0.0, 0
    for output in llm.generate(windows, params):
        assert output.prompt_logprobs is not None
        found = [entry.logprobs[0] for entry in output.prompt_logprobs if entry is not None]
        total, count = total - sum(found), count + len(found)
    assert count == NUM_WINDOWS * (WINDOW - 1)
    return math.exp(total / count)


@pytest.mark.parametrize("kind", BARS)
def test_answers_are_right(demo: LLM, kind: str) -> None:
    cases = heldout.cases(kind)[:NUM_CASES]
    prompts = [demo.engine.inputs.render_chat(c["messages"], c["tools"]) for c in cases]
    outputs = demo.generate(prompts, SamplingParams(temperature=0, max_tokens=200))
    name, bar = BARS[kind]
    right = [
        scoring.score(case, output.outputs[0].text)[name]
        for case, output in zip(cases, outputs, strict=True)
    ]
    assert len(right) == NUM_CASES
    assert sum(right) / len(right) >= bar


def test_int8_costs_at_most_one_percent_of_perplexity() -> None:
    with LLM("demo", platform="cpu") as llm:
        plain = perplexity(llm)
    with LLM("demo", platform="cpu", quantization="int8") as llm:
        specs = {d.spec for d in llm.decisions if d.slot == "linear"}
        assert sum(spec.weight is not None for spec in specs) == len(specs) - 1  # lm_head stays
        quantized = perplexity(llm)
    assert 5 < plain < 20
    assert quantized != plain
    assert abs(quantized / plain - 1) < 0.01, (plain, quantized)


def test_batched_answers_equal_single_ones() -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    # In float32, since AMX rounds bfloat16 differently for few rows and for many.
    with LLM("demo", platform="cpu", dtype="float32", max_num_seqs=8) as llm:
        prompts = [
            llm.engine.inputs.render_chat(case["messages"], case["tools"])
            for case in heldout.cases("fact")[:6]
        ]
        together = [o.outputs[0].token_ids for o in llm.generate(prompts, params)]
        alone = [llm.generate(p, params)[0].outputs[0].token_ids for p in prompts]
    assert together == alone
