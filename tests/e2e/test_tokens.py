"""One request has one answer, whatever runs beside it and however the engine is set.

Offline, streamed, stepped by asyncio, chunked, preempted, overlapped, found in the prefix cache or
computed: the tokens are the same.
"""

import asyncio
import random

import pytest

from hotshoe import LLM, AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.errors import RequestError

SHARED = [(7 * i) % 256 for i in range(48)]
LENGTH = 24
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
PARAMS = [
    GREEDY,
    SamplingParams(temperature=0.9, seed=11, max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(
        temperature=1.3, top_k=20, top_p=0.9, seed=12, max_tokens=LENGTH, ignore_eos=True
    ),
    SamplingParams(temperature=0.7, min_p=0.1, seed=13, max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=LENGTH, ignore_eos=True),
]


def workload() -> list[tuple[TokensPrompt, SamplingParams]]:
    """Prompts of many lengths, some of which share a long prefix."""
    rng = random.Random(5)
    requests = []
    for number in range(10):
        own = [rng.randrange(256) for _ in range(rng.choice((1, 5, 16, 40)))]
        prompt = [*SHARED, *own] if number % 2 else own
        requests.append((TokensPrompt(prompt), PARAMS[number % len(PARAMS)]))
    return requests


def answers(llm: LLM) -> list[list[int]]:
    prompts, params = zip(*workload(), strict=True)
    outputs = llm.generate(list(prompts), list(params))
    assert all(output.outputs[0].error is None for output in outputs)
    return [output.outputs[0].token_ids for output in outputs]


def answers_alone(llm: LLM) -> list[list[int]]:
    outputs = [llm.generate(prompt, params)[0] for prompt, params in workload()]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def expected(open_llm) -> list[list[int]]:
    """Each request alone, without a prefix cache."""
    with open_llm(enable_prefix_caching=False) as llm:
        return answers_alone(llm)


# Blocks of 16 tokens take 16 * 2 layers * 2 heads * 16 channels * 2 (K and V) * 4 bytes = 8 KiB;
# the longest request needs 7 of them.
SHORT = {"kv_cache_memory_bytes": 10 << 13, "block_size": 16, "max_model_len": 112}
SETTINGS = {
    "batched": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "chunked": {"max_num_batched_tokens": 8},
    "overlapped": {"async_scheduling": True},
    "two at a time": {"max_num_seqs": 2},
    "small blocks": {"block_size": 16},
    "short of memory": SHORT,
    "all at once": {**SHORT, "async_scheduling": True, "max_num_batched_tokens": 16},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_answer_does_not_depend_on_the_settings(open_llm, expected, settings: dict) -> None:
    with open_llm(**settings) as llm:
        assert answers(llm) == expected
        assert answers(llm) == expected  # now with a warm cache


def test_batch_invariant_answers_are_equal_to_the_last_bit(open_llm) -> None:
    """Log probabilities too: together, in pieces and alone, with kernels and with references."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
    prompts = [TokensPrompt(SHARED[:n]) for n in (1, 7, 23)]

    def said(outputs) -> list:
        return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]

    with open_llm(batch_invariant=True, enable_prefix_caching=False) as llm:
        together = said(llm.generate(prompts, params))
        assert said([llm.generate(prompt, params)[0] for prompt in prompts]) == together
    pieces = {"max_num_batched_tokens": 8, "max_num_seqs": 2}
    with open_llm(batch_invariant=True, enable_prefix_caching=False, **pieces) as llm:
        assert said(llm.generate(prompts, params)) == together


def test_quantized_answers_do_not_depend_on_the_batch(open_llm, expected) -> None:
    with open_llm(quantization="int8") as llm:
        alone = answers_alone(llm)
        assert alone != expected, "nothing was quantized"
        assert answers(llm) == alone


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2", "int8"])
def test_answers_over_a_small_cache_do_not_depend_on_the_batch(open_llm, expected, kind) -> None:
    """With the prefix cache, in pieces, preempted, and after sleep."""
    with open_llm(kv_cache_dtype=kind, enable_prefix_caching=False) as llm:
        alone = answers_alone(llm)
    assert alone != expected, "nothing was quantized"
    # A number takes a byte here, and every 16 of them another four for their scale.
    with open_llm(kv_cache_dtype=kind, **SHORT | {"kv_cache_memory_bytes": 25600}) as llm:
        gaps = llm.config.platform == "cpu"  # which take the place of a block
        assert llm.engine.core.stats().num_blocks == (12 if kind == "fp8_e5m2" else 10) - gaps
        assert answers(llm) == alone
        assert llm.engine.core.stats().num_preemptions > 0
        llm.sleep()
        llm.wake_up()
        assert answers(llm) == alone


def test_shortage_preempts(open_llm) -> None:
    with open_llm(**SHORT) as llm:
        answers(llm)
        assert llm.engine.core.stats().num_preemptions > 0


def test_equal_prefixes_are_computed_once(open_llm) -> None:
    with open_llm(block_size=16) as llm:
        prompts = [TokensPrompt([*SHARED, number]) for number in range(6)]
        outputs = llm.generate(prompts, GREEDY)
        assert [output.num_cached_tokens for output in outputs] == [0, *[len(SHARED)] * 5]


def test_streams_say_what_generate_says(open_llm, expected) -> None:
    with open_llm() as llm:
        for (prompt, params), tokens in zip(workload(), expected, strict=True):
            updates = list(llm.stream(prompt, params))
            assert [t for u in updates for t in u.sequences[0].new_token_ids] == tokens
            assert updates[-1].output().outputs[0].token_ids == tokens


def test_tasks_say_what_generate_says(model_dir, plugins, platform, expected) -> None:
    config = EngineConfig(str(model_dir), platform=platform, load_format="dummy", seed=3)

    async def ask(engine: AsyncEngine, prompt: TokensPrompt, params: SamplingParams) -> list[int]:
        tokens: list[int] = []
        async for update in engine.generate(prompt, params):
            tokens = update.output().outputs[0].token_ids
        return tokens

    async def run() -> list[list[int]]:
        engine = AsyncEngine(config, plugins)
        try:
            return await asyncio.gather(*(ask(engine, *request) for request in workload()))
        finally:
            engine.close()

    assert asyncio.run(run()) == expected


def test_a_bad_request_leaves_the_others_alone(open_llm, expected) -> None:
    with open_llm() as llm:
        engine = llm.engine
        for number, (prompt, params) in enumerate(workload()):
            engine.add(str(number), prompt, params)
            with pytest.raises(RequestError):
                engine.add(f"bad {number}", TokensPrompt([256]), params)
        found: dict[str, list[int]] = {}
        while engine.has_work():
            for update in engine.step():
                found[update.request_id] = update.output().outputs[0].token_ids
        assert [found[str(number)] for number in range(len(expected))] == expected


def test_aborts_leave_the_others_alone(open_llm, expected) -> None:
    with open_llm(async_scheduling=True) as llm:
        engine = llm.engine
        for number, (prompt, params) in enumerate(workload()):
            engine.add(str(number), prompt, params)
            engine.add(f"gone {number}", TokensPrompt([*SHARED, 1, 2, number]), GREEDY)
        found: dict[str, list[int]] = {}
        steps = 0
        while engine.has_work():
            for update in engine.step():
                found[update.request_id] = update.output().outputs[0].token_ids
            steps += 1
            engine.abort(f"gone {steps - 1}")
        assert [found[str(number)] for number in range(len(expected))] == expected
