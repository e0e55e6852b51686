"""A draft model changes how many steps an answer takes, never the answer.

The draft model of these tests has the model's own weights and another rope, so that it is right
often and not always.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.test_speculation import GREEDY, HARD, PATTERN, SETTINGS, answers, check

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.engine.explain.explanation import explain
from hotshoe.errors import ConfigError, MemoryLimitError, RequestError, UserError

#: For what does not depend on the platform.
ONE = pytest.mark.parametrize("platform", ["cpu"])
LONG = TokensPrompt([(7 * i * i) % 251 for i in range(90)])


@pytest.fixture(scope="session")
def draft_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft") / "model"
    shutil.copytree(model_dir, path)
    change(path, rope_theta=2.0)
    return path


def change(path: Path, **values: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))


def method(path: Path, number: int | None = 4) -> dict[str, object]:
    return {
        "method": "draft_model",
        "model": str(path),
        "num_speculative_tokens": number,
        "adaptive": False,
    }


@pytest.mark.parametrize(
    ("platform", "settings"),
    [*(("plain", SETTINGS[name]) for name in HARD), ("cpu", SETTINGS["all at once"])],
    ids=[*(f"plain-{name}" for name in HARD), "cpu-all at once"],
)
def test_answers_are_those_without_drafts(
    open_llm: Callable[..., LLM], draft_dir: Path, settings: dict[str, object]
) -> None:
    with open_llm(enable_prefix_caching=False) as llm:
        expected = answers(llm)
    if "kv_cache_memory_bytes" in settings:  # half of it is the draft model's
        settings = {**settings, "kv_cache_memory_bytes": 20 << 13}
    with open_llm(speculative_config=method(draft_dir), **settings) as llm:
        check(answers(llm), expected)
        check(answers(llm), expected)  # now with a warm cache
        stats = llm.stats()
        assert stats.num_accepted_tokens > 0 < stats.num_draft_tokens - stats.num_accepted_tokens
        if settings.get("max_model_len"):
            assert stats.num_preemptions > 0


def test_a_draft_model_that_is_the_model_is_always_right(
    open_llm: Callable[..., LLM], model_dir: Path
) -> None:
    drawn = replace(GREEDY, temperature=1.0, seed=5, top_p=0.9, frequency_penalty=0.3)
    with open_llm() as llm:
        plain = llm.generate([LONG, LONG], [GREEDY, drawn])
    with open_llm(speculative_config=method(model_dir), max_num_batched_tokens=32) as llm:
        found = llm.generate([LONG, LONG], [GREEDY, drawn])
        stats = llm.stats()
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 40
        assert stats.num_drafts < 25
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)


@ONE
def test_a_measured_budget_changes_no_answer(open_llm: Callable[..., LLM], draft_dir: Path) -> None:
    params = replace(GREEDY, max_tokens=120)
    with open_llm() as llm:
        plain = llm.generate(LONG, params)[0].outputs
    with open_llm(speculative_config=method(draft_dir, None)) as llm:
        check(llm.generate(LONG, params)[0].outputs, plain)
        assert llm.stats().num_draft_tokens > 0


@ONE
def test_aborted_and_failed_requests_leave_nothing(
    open_llm: Callable[..., LLM], draft_dir: Path
) -> None:
    with open_llm(speculative_config=method(draft_dir)) as llm:
        stream = llm.stream(LONG, GREEDY)
        for _ in range(3):
            next(stream)
        rows = llm.engine.core.workers.draft_model._rows
        assert len(rows._rows) == 1
        stream.close()
        rows.cache.check_held([])
        assert len(rows._free) == 8 and not rows._rows


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_with_the_model(
    open_llm: Callable[..., LLM], draft_dir: Path, level: int
) -> None:
    with open_llm(speculative_config=method(draft_dir)) as llm:
        before = llm.generate(LONG, GREEDY)[0].outputs
        llm.sleep(level)
        llm.wake_up()
        check(llm.generate(LONG, GREEDY)[0].outputs, before)


@ONE
def test_weights_that_cannot_be_moved_are_read_again(
    open_llm: Callable[..., LLM], draft_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RequestError("the weights cannot be moved")

    with open_llm(speculative_config=method(draft_dir)) as llm:
        before = llm.generate(LONG, GREEDY)[0].outputs
        monkeypatch.setattr(llm.engine.core.workers.draft_model._worker, "offload", refuse)
        llm.sleep(1)
        llm.wake_up()
        check(llm.generate(LONG, GREEDY)[0].outputs, before)


@ONE
def test_its_memory_is_part_of_the_plan(open_llm: Callable[..., LLM], draft_dir: Path) -> None:
    with open_llm(kv_cache_memory_bytes=1 << 20, max_num_seqs=256) as llm:
        alone = llm.memory
    options = {"kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 256}
    with open_llm(speculative_config=method(draft_dir), **options) as llm:
        memory = llm.memory
        assert memory["draft_weights"] == memory["weights"] == alone["weights"]
        assert memory["draft_kv_cache"] == pytest.approx(memory["kv_cache"], rel=0.1)
        assert memory["kv_cache"] + memory["draft_kv_cache"] <= 1 << 20
        assert alone["kv_cache"] > 0.9 * (1 << 20)
        told = {
            need.use: need.bytes for need in explain(llm.config, llm.engine.setup.plugins).memory
        }
        assert told["draft weights"] == pytest.approx(memory["draft_weights"], rel=0.01)
        assert told["draft KV cache"] == memory["draft_kv_cache"]
        assert told["KV cache"] == memory["kv_cache"]


def test_it_may_run_on_another_platform(
    open_llm: Callable[..., LLM], draft_dir: Path, platform: str
) -> None:
    other = {"cpu": "plain", "plain": "cpu"}[platform]
    options = {"kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 256}
    with open_llm(**options) as llm:
        plain, alone = answers(llm), llm.memory
    with open_llm(speculative_config={**method(draft_dir), "platform": other}, **options) as llm:
        check(answers(llm), plain)
        assert llm.stats().num_accepted_tokens > 0
        assert llm.memory["kv_cache"] == alone["kv_cache"]
        assert llm.memory["draft_kv_cache"] == pytest.approx(alone["kv_cache"], rel=0.1)
        told = {need.use: need for need in explain(llm.config, llm.engine.setup.plugins).memory}
        assert told["KV cache"].bytes == alone["kv_cache"]
        assert told["draft weights"].note.endswith(f" on {other}")
        llm.sleep(1)
        llm.wake_up()
        check(answers(llm), plain)


@ONE
def test_defects_are_named(open_llm: Callable[..., LLM], draft_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(draft_dir, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    names = sorted(tokenizer["model"]["vocab"], reverse=True)
    tokenizer["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    smaller = tmp_path / "smaller"
    shutil.copytree(draft_dir, smaller)
    change(smaller, vocab_size=200)
    cases: list[tuple[dict[str, object], dict[str, object], type[UserError], str]] = [
        (method(other), {}, ConfigError, "another vocabulary than .*token 0 is"),
        (method(smaller), {"skip_tokenizer_init": True}, ConfigError, "has 200 tokens and"),
        (method(tmp_path / "none"), {}, UserError, "speculative_config.model .*none"),
        ({"method": "draft_model"}, {}, ConfigError, "speculative_config.model is missing"),
        ({**method(draft_dir), "modle": 1}, {}, ConfigError, "no option modle; did you mean model"),
        ({**method(draft_dir), "platform": 8}, {}, ConfigError, "platform must be a text, not 8"),
        ({**method(draft_dir), "platform": "x"}, {}, UserError, "speculative_config.model .*x"),
        ({**method(draft_dir), "quantization": 8}, {}, ConfigError, "quantization must be a text"),
        (
            {**method(draft_dir), "quantization": "x"},
            {},
            UserError,
            "speculative_config.model .*'x'",
        ),
        (method(draft_dir), {"kv_cache_memory_bytes": 250_000}, MemoryLimitError, "share of 0.24"),
    ]
    for options, settings, kind, message in cases:
        with pytest.raises(kind, match=message):
            open_llm(speculative_config=options, **settings)


@ONE
def test_tokens_that_only_one_of_both_knows_have_no_drafts(
    open_llm: Callable[..., LLM], draft_dir: Path, tmp_path: Path
) -> None:
    smaller = tmp_path / "smaller"
    shutil.copytree(draft_dir, smaller)
    change(smaller, vocab_size=200)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    prompts = [TokensPrompt(PATTERN), TokensPrompt([*PATTERN, 255])]
    with open_llm() as llm:
        plain = llm.generate(prompts, params)
    with open_llm(speculative_config=method(smaller)) as llm:
        for ours, theirs in zip(llm.generate(prompts, params), plain, strict=True):
            check(ours.outputs, theirs.outputs)
    larger = tmp_path / "larger"
    shutil.copytree(draft_dir, larger)
    change(larger, vocab_size=300)
    with open_llm(speculative_config=method(larger)) as llm:
        for ours, theirs in zip(llm.generate(prompts, params), plain, strict=True):
            check(ours.outputs, theirs.outputs)
        assert llm.stats().num_draft_tokens > 0
