"""Beam search: against all texts there are, against transformers, and through the engine."""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace

import pytest

from hotshoe import LLM, AsyncEngine, BeamSearchParams, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.api.beams import BeamSearch, run_searches, search_beams
from hotshoe.errors import EngineError, RequestError
from hotshoe.types import CompletionOutput, EmbedsPrompt, FinishReason, TokenLogprobs

VOCABULARY, EOS = range(4), 3


def info(**values) -> SimpleNamespace:
    config = SimpleNamespace(max_logprobs=values.pop("max_logprobs", 128))
    return SimpleNamespace(
        **{"config": config, "max_model_len": 64, "eos_token_ids": (EOS,)} | values
    )


def values_after(tokens: tuple[int, ...], seed: int) -> list[float]:
    """Return a log probability for each token, fixed by what comes before."""
    rng = random.Random(f"{seed} {tokens}")
    return [-rng.expovariate(1.0) for _ in VOCABULARY]


def generator(seed: int):
    def generate(prompts, params) -> list:
        outputs = []
        for prompt, one in zip(prompts, params, strict=True):
            found = values_after(tuple(prompt.token_ids), seed)
            best = sorted(VOCABULARY, key=lambda t: -found[t])[: one.logprobs]
            listed = TokenLogprobs((best[0], *best), (found[best[0]], *(found[t] for t in best)), 1)
            outputs.append(
                SimpleNamespace(outputs=[CompletionOutput(0, "", [best[0]], logprobs=[listed])])
            )
        return outputs

    return generate


def every_text(prompt: tuple[int, ...], length: int, seed: int) -> dict[tuple[int, ...], float]:
    """Return the sum of log probabilities of every text that ends, or is as long as may be."""
    found = {}
    for size in range(1, length + 1):
        for text in itertools.product(VOCABULARY, repeat=size):
            if EOS in text[:-1] or (size < length and text[-1] != EOS):
                continue
            found[text] = sum(
                values_after(prompt + text[:i], seed)[token] for i, token in enumerate(text)
            )
    return found


def search(seed: int, width: int, **params) -> list[CompletionOutput]:
    prompt = TokensPrompt([9, 8])
    made = BeamSearch(prompt, BeamSearchParams(width, max_tokens=4, **params), info())
    run_searches([made], generator(seed))
    return made.update("r", None, None).output().outputs


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_wide_searches_find_the_best_of_all_texts(penalty: float) -> None:
    for seed in range(20):
        texts = every_text((9, 8), 4, seed)
        best = sorted(texts, key=lambda t: -texts[t] / len(t) ** penalty)[:30]
        found = search(seed, 30, length_penalty=penalty)
        assert [tuple(output.token_ids) for output in found] == best
        for output in found:
            text = tuple(output.token_ids)
            assert output.cumulative_logprob == pytest.approx(texts[text], abs=1e-12)
            ended = text[-1] == EOS
            assert output.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


def test_one_beam_takes_the_likeliest_token_each_time() -> None:
    for seed in range(10):
        [found] = search(seed, 1, ignore_eos=True)
        text: tuple[int, ...] = ()
        for _ in range(4):
            values = values_after((9, 8, *text), seed)
            text += (max(VOCABULARY, key=lambda t: values[t]),)
        assert tuple(found.token_ids) == text


def test_a_search_stops_where_nothing_better_can_come() -> None:
    steps = 0

    def generate(prompts, params) -> list:
        nonlocal steps
        steps += 1
        values = TokenLogprobs((EOS, EOS, 0), (-0.01, -0.01, -5.0), 1)
        output = CompletionOutput(0, "", [EOS], logprobs=[values])
        return [SimpleNamespace(outputs=[output]) for _ in prompts]

    made = BeamSearch(TokensPrompt([9]), BeamSearchParams(1, max_tokens=50), info())
    run_searches([made], generate)
    assert steps == 1


@pytest.mark.parametrize(
    ("params", "prompt", "facts", "field"),
    [
        ({"beam_width": 4}, [1], {"max_logprobs": 7}, "beam_width"),
        ({"beam_width": 1}, [1] * 64, {}, "prompt"),
    ],
)
def test_what_cannot_be_searched(params, prompt, facts, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        BeamSearch(TokensPrompt(prompt), BeamSearchParams(**params), info(**facts))
    assert caught.value.field == field


def test_the_context_bounds_the_length() -> None:
    made = BeamSearch(TokensPrompt([9] * 61), BeamSearchParams(2, None, True), info())
    run_searches([made], generator(1))
    assert [len(o.token_ids) for o in made.update("r", None, None).output().outputs] == [3, 3]


def test_a_step_that_fails_ends_the_search() -> None:
    def generate(prompts, params) -> list:
        output = CompletionOutput(0, "", [], finish_reason=FinishReason.ERROR, error="not finite")
        return [SimpleNamespace(outputs=[output]) for _ in prompts]

    made = BeamSearch(TokensPrompt([9]), BeamSearchParams(2), info())
    with pytest.raises(EngineError, match="not finite"):
        run_searches([made], generate)


@pytest.fixture(scope="module")
def llm():
    pytest.importorskip("hotshoe_demo", reason="hotshoe-demo is not installed")
    with LLM("demo", dtype="float32", max_num_seqs=16) as opened:
        yield opened


def test_the_engine_finds_what_transformers_finds(llm: LLM) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from hotshoe_demo import MODEL

    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    prompts = ["Once upon a time", "The little dog"]
    outputs = llm.beam_search(prompts, BeamSearchParams(4, max_tokens=8, ignore_eos=True))
    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=8,
            do_sample=False,
            length_penalty=1.0,
            suppress_tokens=None,
            eos_token_id=None,
            output_scores=True,
            return_dict_in_generate=True,
        )
        texts = expected.sequences[:, ids.shape[1] :].tolist()
        assert [found.token_ids for found in output.outputs] == texts
        scores = [found.cumulative_logprob / 8 for found in output.outputs]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
        assert [o.text for o in output.outputs] == [
            llm.tokenizer.decode([*output.prompt_token_ids, *t])[len(output.prompt or "") :]
            for t in texts
        ]


def test_one_beam_is_greedy_and_prefixes_are_cached(llm: LLM) -> None:
    [greedy] = llm.generate("One day", SamplingParams(temperature=0, max_tokens=40))
    before = llm.stats()
    [output] = llm.beam_search("One day", BeamSearchParams(1, max_tokens=40))
    assert output.outputs[0].token_ids == greedy.outputs[0].token_ids
    assert output.outputs[0].text == greedy.outputs[0].text
    assert llm.stats().num_hit_tokens > before.num_hit_tokens


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("x", SamplingParams(), "params"),
        ("", BeamSearchParams(2), "prompt"),
        ("x", BeamSearchParams(11), "beam_width"),
        (EmbedsPrompt([[0.0] * 64]), BeamSearchParams(2), "prompt"),
    ],
)
def test_bad_requests_of_the_engine(llm: LLM, prompt, params, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.beam_search(prompt, params)
    assert caught.value.field == field
    assert not llm.engine.has_work()


def test_a_client_searches_alike(llm: LLM) -> None:
    params = BeamSearchParams(3, max_tokens=6)
    ids = llm.tokenizer.encode("The cat", True)
    [expected] = llm.beam_search(TokensPrompt(ids), params)

    async def run() -> list:
        config = EngineConfig(model="demo", dtype="float32", max_num_seqs=4)
        client = AsyncEngine(config)
        try:
            found = [u async for u in search_beams(client, TokensPrompt(ids), params, "r")]
            late = search_beams(client, TokensPrompt(ids), params, "s", timeout_s=1e-9)
            [cut] = [u.sequences[0] async for u in late]
            assert (cut.finish_reason, cut.error) == (FinishReason.ABORT, "deadline")
            return found
        finally:
            client.close()

    [update] = asyncio.run(run())
    assert update.finished
    found = update.output().outputs
    assert [o.token_ids for o in found] == [o.token_ids for o in expected.outputs]
    assert [o.text for o in found] == [o.text for o in expected.outputs]
