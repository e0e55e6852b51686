"""Drafts of a model's own further layers: they are those of plain code, and change no answer."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e import mtp
from tests.e2e.test_speculation import GREEDY, HARD, SETTINGS, answers, check

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.plugins import PluginManager
from hotshoe.runner.runner import Runner
from hotshoe.speculation.drafting import Drafting, Heads
from hotshoe.speculation.proposer import Wanted

ONE = pytest.mark.parametrize("platform", ["cpu"])


def method(number: int | None = 3) -> dict[str, object]:
    return {"method": "mtp", "num_speculative_tokens": number, "adaptive": False}


@pytest.fixture
def open_mtp(
    model_dir: Path, plugins: PluginManager, platform: str, tmp_path: Path
) -> Callable[..., LLM]:
    """Open a checkpoint of given weights; options as for LLM."""

    def build(weights: mtp.Weights, changes: dict[str, object] | None = None, **options) -> LLM:
        path = mtp.write(tmp_path / "mtp", weights, **changes or {})
        shutil.copy(model_dir / "tokenizer.json", path)
        settings = {"platform": platform, "max_num_seqs": 8, "seed": 3}
        return LLM(str(path), plugins=plugins, **{**settings, **options})

    return build


@pytest.mark.parametrize(
    ("platform", "settings"),
    [*(("plain", SETTINGS[name]) for name in HARD), ("cpu", SETTINGS["all at once"])],
    ids=[*(f"plain-{name}" for name in HARD), "cpu-all at once"],
)
def test_answers_are_those_without_drafts(
    open_mtp: Callable[..., LLM], settings: dict[str, object]
) -> None:
    weights = mtp.chain_weights(3, strange=0.4, further=2)
    changes = {"num_nextn_predict_layers": 2}
    if "kv_cache_memory_bytes" in settings:  # two further layers have a cache
        settings = {**settings, "kv_cache_memory_bytes": 10 * 4 * 16 * 256}
    with open_mtp(weights, enable_prefix_caching=False) as llm:
        expected = answers(llm)
    with open_mtp(weights, changes, speculative_config=method(), **settings) as llm:
        check(answers(llm), expected)
        check(answers(llm), expected)  # now with a warm cache
        stats = llm.stats()
        assert stats.num_accepted_tokens > 0 < stats.num_draft_tokens - stats.num_accepted_tokens
        if settings.get("max_model_len"):
            assert stats.num_preemptions > 0


@pytest.mark.parametrize(
    ("platform", "further", "recorded"),
    [("cpu", 1, False), ("plain", 3, False), ("cpu", 2, True)],
    ids=["one layer", "three layers", "two layers, recorded"],
)
def test_drafts_are_those_of_plain_code(
    open_mtp: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, further: int, recorded: bool
) -> None:
    """Behind prompts in parts, behind accepted and refused drafts, and at ends of blocks; the k-th
    draft is the k-th layer's."""
    weights = mtp.random_weights(8, further)
    weights |= {
        name: tensor
        for name, tensor in mtp.chain_weights(8).items()
        if name in ("model.embed_tokens.weight", "lm_head.weight", f"{mtp.HEAD}input_proj.weight")
    }
    for i in range(1, further):
        weights[f"{mtp.FURTHER.format(i)}input_proj.weight"] += weights[
            f"{mtp.HEAD}input_proj.weight"
        ]
    record = Runner.record_graphs

    def recording(runner: Runner, every: bool = False) -> None:
        record(runner, every)
        if runner._ahead is not None:
            runner._ahead.record(lambda function: function, (1, 3))

    if recorded:
        monkeypatch.setattr(Runner, "record_graphs", recording)
    for name, tensor in weights.items():  # so that drafts are right now and then
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.3
    seen: list[tuple[list[int], list[int]]] = []
    propose = Heads.propose

    def spy(self: Heads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    monkeypatch.setattr(Heads, "propose", spy)
    prompts = [TokensPrompt([(n * i * i + i) % 251 for i in range(9 + 7 * n)]) for n in range(1, 4)]
    options = {"max_num_batched_tokens": 12, "enable_prefix_caching": False, "block_size": 16}
    options["changes"] = {"num_nextn_predict_layers": further}
    number = max(3, further + 1)
    with open_mtp(weights, enable_prefix_caching=False) as llm:
        plain = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
    with open_mtp(weights, speculative_config=method(number), **options) as llm:
        found = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
        assert found == plain
        assert 0 < llm.stats().num_accepted_tokens < llm.stats().num_draft_tokens
    assert len(seen) > 60
    lengths = set()
    for ids, made in seen[::3]:
        expected = mtp.drafts(weights, ids, number, further)
        assert made and all(x in y for x, y in zip(made, expected, strict=False))
        lengths.add(len(made))
        if len(made) < number:  # the next block is not the sequence's yet
            assert (len(ids) - 2 + len(made)) % 16 == 0
    assert number in lengths


@ONE
def test_trees_of_drafts_change_no_answer(open_mtp: Callable[..., LLM]) -> None:
    weights = mtp.chain_weights(3, strange=0.4)
    with open_mtp(weights, enable_prefix_caching=False) as llm:
        expected = answers(llm)
    tree = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1)]"
    options = {"method": "mtp", "speculative_token_tree": tree}
    with open_mtp(weights, speculative_config=options) as llm:
        check(answers(llm), expected)
        stats = llm.stats()
        assert stats.num_accepted_tokens > 0 < stats.num_draft_tokens - stats.num_accepted_tokens


@ONE
def test_a_head_that_knows_the_text_is_always_right(open_mtp: Callable[..., LLM]) -> None:
    weights = mtp.chain_weights(5)
    drawn = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True, logprobs=2)
    prompts = [TokensPrompt(range(90)), TokensPrompt([7])]
    with open_mtp(weights) as llm:
        plain = llm.generate(prompts, [GREEDY, drawn])
    with open_mtp(weights, speculative_config=method(1), max_num_batched_tokens=32) as llm:
        found = llm.generate(prompts[:1], GREEDY)
        stats = llm.stats()
        assert stats.num_accepted_tokens == stats.num_draft_tokens >= 19
        found += llm.generate(prompts[1:], drawn)
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)


@ONE
@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_with_the_model(open_mtp: Callable[..., LLM], level: int) -> None:
    with open_mtp(mtp.chain_weights(6), speculative_config=method()) as llm:
        before = llm.generate(TokensPrompt([1, 2, 3]), GREEDY)[0].outputs
        llm.sleep(level)
        llm.wake_up()
        accepted = llm.stats().num_accepted_tokens
        check(llm.generate(TokensPrompt([1, 2, 3]), GREEDY)[0].outputs, before)
        assert llm.stats().num_accepted_tokens >= accepted + 20


@ONE
def test_a_measured_budget_changes_no_answer(open_mtp: Callable[..., LLM]) -> None:
    weights, params = mtp.chain_weights(7, strange=0.4), replace(GREEDY, max_tokens=120)
    with open_mtp(weights) as llm:
        plain = llm.generate(TokensPrompt([5]), params)[0].outputs
    with open_mtp(weights, speculative_config=method(None)) as llm:
        check(llm.generate(TokensPrompt([5]), params)[0].outputs, plain)
        assert llm.stats().num_draft_tokens > 0


@ONE
@pytest.mark.parametrize("further", [1, 2])
def test_drafts_behind_steps_without_any_are_as_good(
    open_mtp: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, further: int
) -> None:
    """Of ten steps the first nine want none; what they left is written when the tenth does. Of
    several layers the first drafts alone then."""
    seen: list[tuple[list[int], list[int]]] = []
    asked = iter(range(1000))
    propose = Heads.propose

    def spy(self: Heads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted if one.made)
        return propose(self, wanted)

    monkeypatch.setattr(Heads, "propose", spy)
    monkeypatch.setattr(Drafting, "num_ahead", property(lambda _: 3 * (next(asked) % 10 == 9)))
    weights = mtp.random_weights(8, further)
    prompts = [TokensPrompt([(n * i * i + i) % 251 for i in range(9 + 7 * n)]) for n in range(1, 4)]
    options = {"enable_prefix_caching": False, "async_scheduling": True}
    options["changes"] = {"num_nextn_predict_layers": further}
    with open_mtp(weights, speculative_config=method(), **options) as llm:
        llm.generate(prompts, [replace(GREEDY, max_tokens=n) for n in (60, 71, 80)])
    assert len(seen) > 12
    for ids, made in seen:
        expected = mtp.drafts(weights, ids, 3)
        assert all(x in y for x, y in zip(made, expected, strict=False))


@ONE
def test_what_cannot_be_is_refused(open_mtp: Callable[..., LLM], open_llm) -> None:
    weights = mtp.random_weights(1)
    cases: list[tuple[dict[str, object], str]] = [
        ({"speculative_config": {**method(), "models": "x"}}, "no option models"),
        ({"changes": {"num_nextn_predict_layers": 0}}, "MiMoForCausalLM in .* has none"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigError, match=message):
            open_mtp(weights, **{"speculative_config": method(), **options})
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM in .* has none"):
        open_llm(speculative_config=method())
    del weights[f"{mtp.HEAD}input_proj.weight"]
    with pytest.raises(CheckpointError, match=r"lacks .*input_proj"):
        open_mtp(weights, speculative_config=method())
