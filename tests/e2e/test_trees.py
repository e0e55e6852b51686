"""Trees of drafts change how many steps an answer takes, never the answer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.e2e import eagle
from tests.e2e.test_speculation import GREEDY, SHORT, answers, check

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import ConfigError
from hotshoe.plugins import PluginManager
from hotshoe.runner.runner import Runner
from hotshoe.runner.running import RunningStep
from hotshoe.types import StepPlan

TREE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0)]"
CHAIN = "[(0,), (0, 0), (0, 0, 0)]"
Open = Callable[..., LLM]


@pytest.fixture(scope="module")
def checkpoint(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and heads whose second guess is often the right one."""
    path = tmp_path_factory.mktemp("trees")
    model = eagle.model_weights("qwen3", 5)
    head = eagle.head_weights("medusa", model, 6)
    generator = torch.Generator().manual_seed(7)
    for i in range(3):
        matrix = head[f"lm_heads.{i}.weight"]
        matrix += torch.randn(matrix.shape, generator=generator) * 0.11
    eagle.write_model(path / "model", "qwen3", model)
    shutil.copy(model_dir / "tokenizer.json", path / "model")
    eagle.write(path / "head", head, **eagle.HEAD_CONFIGS["medusa"])
    return path


@pytest.fixture
def open_pair(checkpoint: Path, plugins: PluginManager) -> Open:
    def make(tree: str | None, **options: object) -> LLM:
        head = {"method": "medusa", "model": str(checkpoint / "head")}
        settings = {"platform": "cpu", "max_num_seqs": 8, "seed": 3, "plugins": plugins} | options
        drafts = None if tree is None else head | {"speculative_token_tree": tree}
        settings.setdefault("speculative_config", drafts)
        return LLM(str(checkpoint / "model"), **settings)

    return make


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """Plans of steps, as far as they were asked for."""
    seen: list[StepPlan] = []
    execute = Runner.execute

    def spy(self: Runner, plan: StepPlan) -> RunningStep:
        seen.append(plan)
        return execute(self, plan)

    monkeypatch.setattr(Runner, "execute", spy)
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {"enforce_eager": True, "max_num_batched_tokens": 24},
        {**SHORT, "async_scheduling": True, "max_num_batched_tokens": 48},
        {"platform": "plain"},
    ],
)
def test_answers_are_those_without_drafts(
    open_pair: Open, plans: list[StepPlan], settings: dict[str, object]
) -> None:
    """Greedy or drawn, chunked, preempted, overlapped, found in the prefix cache, and beside
    requests whose drafts are chains."""
    if "kv_cache_memory_bytes" in settings:  # there are four caches
        settings = {**settings, "kv_cache_memory_bytes": 10 * 4 * 16 * 256}
    with open_pair(None, enable_prefix_caching=False) as llm:
        expected = answers(llm)
    with open_pair(TREE, **settings) as llm:
        for _ in range(2):
            check(answers(llm), expected)
        assert llm.stats().num_accepted_tokens > 0
        if settings.get("max_model_len"):
            assert llm.stats().num_preemptions > 0
    assert any(0 < len(plan.parents) < len(plan.draft_rows) for plan in plans)
    assert sum(lost for plan in plans for lost, _ in plan.taken.values()) > 3


def test_a_tree_has_more_drafts_accepted_than_its_chain(open_pair: Open) -> None:
    prompts = [TokensPrompt([7 * n, 3, n + 1]) for n in range(16)]
    found = {}
    for tree in (CHAIN, TREE):
        with open_pair(tree) as llm:
            tokens = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
            found[tree] = tokens, llm.stats().num_accepted_tokens
    assert found[CHAIN][0] == found[TREE][0]
    assert found[TREE][1] > 1.1 * found[CHAIN][1]


@pytest.mark.slow
def test_ranks_take_the_same_path(open_pair: Open) -> None:
    prompts = [TokensPrompt([7 * n, 3, n + 1]) for n in range(6)]
    with open_pair(None) as llm:
        plain = llm.generate(prompts, GREEDY)
    with open_pair(TREE, tensor_parallel_size=2, plugins=None) as llm:
        found = llm.generate(prompts, GREEDY)
        assert llm.stats().num_accepted_tokens > 0
    for ours, theirs in zip(found, plain, strict=True):
        check(ours.outputs, theirs.outputs)


def test_a_stream_that_is_left_leaves_nothing_behind(open_pair: Open) -> None:
    prompts = [TokensPrompt([3, 1, 4, 1, n]) for n in range(4)]
    with open_pair(TREE, enable_prefix_caching=False) as llm:
        plain = llm.generate(prompts, GREEDY)
    with open_pair(TREE) as llm:
        for _ in range(3):
            stream = llm.stream(prompts[0], GREEDY)
            for _ in range(3):
                next(stream)
            stream.close()
            found = llm.generate(prompts, GREEDY)
            for ours, theirs in zip(found, plain, strict=True):
                check(ours.outputs, theirs.outputs)
        assert not llm.engine.core.has_work()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"speculative_token_tree": "[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]"},
            "model has 3 heads",
        ),
        ({"speculative_token_tree": "[(0, 0)]"}, "not its parent"),
        ({"pipeline_parallel_size": 2}, "needs all layers in one stage"),
        ({"num_speculative_tokens": 4}, "is 4, but .* has 10 nodes"),
        ({"method": "mtp", "model": None}, "no option|has none"),
        ({"method": "ngram", "model": None}, "no option .*speculative_token_tree"),
    ],
)
def test_trees_that_nobody_makes_are_refused(
    open_pair: Open, checkpoint: Path, changes: dict[str, object], message: str
) -> None:
    options = {
        "method": "medusa",
        "model": str(checkpoint / "head"),
        "speculative_token_tree": TREE,
    } | changes
    ranks = {"pipeline_parallel_size": options.pop("pipeline_parallel_size", 1)}
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        open_pair(None, speculative_config=options, **ranks)
