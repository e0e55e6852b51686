"""Drafts change how many steps an answer takes, never the answer.

Greedy or drawn by seed, batched, chunked, preempted, overlapped, found in the prefix cache: tokens,
text, log probabilities and ends are those of an engine without speculation.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.runner.graphs import Recordings
from hotshoe.slots import GraphSpec
from hotshoe.types import CompletionOutput

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "adaptive": False,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 1,
}
LENGTH = 40
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
#: Random weights soon repeat themselves; the others keep them from it, and every stage is used.
PARAMS = [
    GREEDY,
    replace(GREEDY, logprobs=2, prompt_logprobs=1),
    replace(GREEDY, temperature=0.3, seed=11, top_k=20, top_p=0.9),
    replace(GREEDY, temperature=0.2, seed=12, min_p=0.1, logprobs=0),
    replace(GREEDY, frequency_penalty=0.2, presence_penalty=0.1),
    replace(GREEDY, logit_bias={65: 2.0}, min_tokens=8, stop_token_ids=(65, 66)),
    replace(GREEDY, max_tokens=7, n=2, temperature=0.1, seed=3),
]
PATTERN = [3, 1, 4, 1, 5, 9, 2, 6]
# As in test_tokens.py: room for 10 blocks, where the longest request needs 8.
SHORT = {"kv_cache_memory_bytes": 10 << 13, "block_size": 16, "max_model_len": 128}
SETTINGS = {
    "batched": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "chunked": {"max_num_batched_tokens": 9},
    "overlapped": {"async_scheduling": True},
    "short of memory": SHORT,
    "all at once": {**SHORT, "async_scheduling": True, "max_num_batched_tokens": 16},
}
#: For methods with a cache of their own; without prefixes, they run in what others are compared to.
HARD = ("chunked", "overlapped", "short of memory", "all at once")


def workload() -> list[tuple[TokensPrompt, SamplingParams]]:
    """Prompts that repeat themselves and prompts that do not; some share a prefix."""
    rng = random.Random(5)
    requests = []
    for number in range(14):
        own = [rng.randrange(256) for _ in range(rng.choice((1, 5, 16)))]
        prompt = [*PATTERN * rng.randrange(1, 7), *own] if number % 2 else own
        requests.append((TokensPrompt(prompt), PARAMS[number % len(PARAMS)]))
    return requests


def answers(llm: LLM) -> list[CompletionOutput]:
    prompts, params = zip(*workload(), strict=True)
    return [x for output in llm.generate(list(prompts), list(params)) for x in output.outputs]


def check(found: list[CompletionOutput], expected: list[CompletionOutput]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text
        assert (ours.finish_reason, ours.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for mine, other in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            assert mine.token_ids == other.token_ids
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.fixture
def expected(open_llm: Callable[..., LLM]) -> list[CompletionOutput]:
    with open_llm(enable_prefix_caching=False) as llm:
        return answers(llm)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_answers_are_those_without_drafts(
    open_llm: Callable[..., LLM], expected: list[CompletionOutput], settings: dict[str, object]
) -> None:
    with open_llm(speculative_config=NGRAM, **settings) as llm:
        check(answers(llm), expected)
        check(answers(llm), expected)  # now with a warm cache
        stats = llm.stats()
        assert stats.num_accepted_tokens > 0 < stats.num_draft_tokens - stats.num_accepted_tokens
        if settings.get("max_model_len"):
            assert stats.num_preemptions > 0


@pytest.mark.parametrize("name", ["chunked", "overlapped"])
def test_drafts_of_the_device_are_those_of_the_host(
    open_llm: Callable[..., LLM], expected: list[CompletionOutput], name: str
) -> None:
    counts = []
    for method in ("ngram", "ngram_device"):
        with open_llm(speculative_config={**NGRAM, "method": method}, **SETTINGS[name]) as llm:
            check(answers(llm), expected)
            stats = llm.stats()
            counts.append((stats.num_draft_tokens, stats.num_accepted_tokens))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("method", ["ngram", "ngram_device"])
def test_answers_of_recorded_steps_are_those_without_drafts(
    open_llm: Callable[..., LLM], expected: list[CompletionOutput], monkeypatch, method: str
) -> None:
    """By the reference, which runs what others record: decode steps have several sizes then, and
    steps that verify drafts are among them."""
    sizes: list[int] = []

    def replayed(recordings: Recordings, size: int) -> Tensor:
        sizes.append(size)
        return replay(recordings, size)

    replay = Recordings.replay
    monkeypatch.setattr(Recordings, "replay", replayed)
    every = (GraphSpec(4, pieces=True), "")
    monkeypatch.setattr("hotshoe.runner.worker.recordable", lambda *_: every)
    options = {"max_num_seqs": 4, "kernel": {"graph": "reference"}}
    drafting = {**NGRAM, "method": method}
    with open_llm(speculative_config=drafting, async_scheduling=True, **options) as llm:
        check(answers(llm), expected)
        assert llm.stats().num_accepted_tokens > 0
    assert {8, 16, 20} & set(sizes), "more tokens than requests"


@pytest.mark.parametrize("number", [None, 5])
def test_suffixes_of_finished_answers_change_no_answer(
    open_llm: Callable[..., LLM], expected: list[CompletionOutput], number: int | None
) -> None:
    options = {"method": "suffix", "num_speculative_tokens": number, "adaptive": False}
    with open_llm(speculative_config=options, async_scheduling=number is None) as llm:
        check(answers(llm), expected)
        check(answers(llm), expected)
        assert number is None or llm.stats().num_accepted_tokens > 0


def test_streams_bring_blocks_of_tokens_up_to_a_stop_string(open_llm: Callable[..., LLM]) -> None:
    with open_llm() as llm:
        prompt = TokensPrompt(PATTERN * 3)
        whole = llm.generate(prompt, GREEDY)[0].outputs[0]
        end = whole.text[20:23]
        params = replace(GREEDY, stop=(end,), logprobs=1)
        plain = llm.generate(prompt, params)[0].outputs[0]
    with open_llm(speculative_config=NGRAM) as llm:
        updates = list(llm.stream(prompt, params))
        last = updates[-1].output().outputs[0]
        check([last], [plain])
        assert last.stop_reason == end
        new = [update.sequences[0].new_token_ids for update in updates]
        assert [t for tokens in new for t in tokens] == plain.token_ids
        assert len(new) < len(plain.token_ids)
        assert llm.engine.core.quiesce() == [], "a step may be under way"
        assert not llm.engine.core.has_work()


def test_drafts_end_with_the_longest_sequence(open_llm: Callable[..., LLM]) -> None:
    unbounded = replace(GREEDY, max_tokens=None)
    prompt = TokensPrompt(PATTERN * 2)
    with open_llm(max_model_len=40) as llm:
        plain = llm.generate(prompt, unbounded)[0].outputs[0]
    options = {**NGRAM, "num_speculative_tokens": 64, "adaptive": False}
    with open_llm(max_model_len=40, speculative_config=options) as llm:
        check([llm.generate(prompt, unbounded)[0].outputs[0]], [plain])
        assert len(plain.token_ids) == 24


def test_the_demo_model_says_the_same() -> None:
    prompts = [
        "one two three four one two three four one two",
        "The cat sat on the mat. The cat sat on the",
        "Hello, my name is",
        "a b c a b c a b c a",
    ]
    params = SamplingParams(temperature=0, max_tokens=48)
    options = {"max_model_len": 256, "dtype": "float32", "max_num_seqs": 4}
    with LLM("demo", **options) as llm:
        plain = llm.generate(prompts, params)
    with LLM("demo", speculative_config=NGRAM, **options) as llm:
        found = llm.generate(prompts, params)
        assert llm.stats().num_accepted_tokens > 0
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)
