"""Trees of drafts change how many steps an answer takes, never the answer."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tests.e2e import eagle
from tests.e2e.test_speculation import GREEDY, SHORT, answers, check

from hotshoe import LLM, TokensPrompt
from hotshoe.errors import ConfigError
from hotshoe.layers import Changes
from hotshoe.plugins import PluginManager
from hotshoe.runner.graphs import Recordings
from hotshoe.runner.levels import LevelAhead
from hotshoe.runner.rehearsal import SMALLEST
from hotshoe.runner.runner import Runner
from hotshoe.runner.running import RunningStep
from hotshoe.slots import GraphSpec
from hotshoe.speculation.proposer import Wanted
from hotshoe.speculation.trees import TreeHeads
from hotshoe.types import StepPlan
from hotshoe.types.trees import parse_tree
from hotshoe_cpu.tree_attention import TreeAttention

TREE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0)]"
CHAIN = "[(0,), (0, 0), (0, 0, 0)]"
Open = Callable[..., LLM]


#: Matrices of heads that noise spoils, and how much of it.
NOISE = {
    "medusa": ([f"lm_heads.{i}.weight" for i in range(3)], 0.11),
    "eagle": (["fc.weight"], 0.07),
    "eagle3": (["lm_head.weight"], 0.11),
}


@pytest.fixture(scope="module")
def checkpoint(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and heads whose second guess is often the right one."""
    path = tmp_path_factory.mktemp("trees")
    model = eagle.model_weights("qwen3", 5)
    eagle.write_model(path / "model", "qwen3", model)
    shutil.copy(model_dir / "tokenizer.json", path / "model")
    for method in NOISE:
        eagle.write(path / method, spoiled_head(method), **eagle.HEAD_CONFIGS[method])
    return path


def spoiled_head(method: str) -> eagle.Weights:
    """Return a head that is less often right."""
    names, share = NOISE[method]
    head = eagle.head_weights(method, eagle.model_weights("qwen3", 5), 6)
    generator = torch.Generator().manual_seed(7)
    for name in names:
        head[name] = head[name] + torch.randn(head[name].shape, generator=generator) * share
    return head


@pytest.fixture(params=NOISE)
def open_pair(request: pytest.FixtureRequest, checkpoint: Path, plugins: PluginManager) -> Open:
    def make(tree: str | None, **options: object) -> LLM:
        head = {"method": request.param, "model": str(checkpoint / request.param)}
        settings = {"platform": "cpu", "max_num_seqs": 8, "seed": 3, "plugins": plugins} | options
        drafts = None if tree is None else head | {"speculative_token_tree": tree}
        settings.setdefault("speculative_config", drafts)
        if "kv_cache_memory_bytes" in settings:  # for ten blocks of all layers
            layers = eagle.LAYERS + (request.param != "medusa")
            settings["kv_cache_memory_bytes"] = 10 * layers * 16 * 256
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


def test_steps_with_trees_are_recorded_as_a_whole(
    open_pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the reference, which runs what others record; levels of trees are among it."""
    replayed: list[tuple[Recordings, int]] = []

    def note(recordings: Recordings, size: int) -> torch.Tensor:
        replayed.append((recordings, size))
        return replay(recordings, size)

    replay = Recordings.replay
    with open_pair(None) as llm:
        expected = answers(llm)
    monkeypatch.setattr(Recordings, "replay", note)
    every = (GraphSpec(8, pieces=True), "")
    monkeypatch.setattr("hotshoe.runner.worker.recordable", lambda *_: every)
    with open_pair(TREE, kernel={"graph": "reference"}, async_scheduling=True) as llm:
        check(answers(llm), expected)
        runner = llm.engine.core.workers.main.execute.runner
    trees = runner._trees[Changes.NOTHING].recordings
    each = 1 + 10 + 3
    assert {size for recordings, size in replayed if recordings is trees} >= {4 * each, 8 * each}
    levels = [size for recordings, size in replayed if recordings in runner._ahead._steps]
    assert levels or not isinstance(runner._ahead, LevelAhead)


def test_a_tree_has_more_drafts_accepted_than_its_chain(open_pair: Open) -> None:
    prompts = [TokensPrompt([7 * n, 3, n + 1]) for n in range(16)]
    found = {}
    for tree in (CHAIN, TREE):
        with open_pair(tree) as llm:
            tokens = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
            found[tree] = tokens, llm.stats().num_accepted_tokens
    assert found[CHAIN][0] == found[TREE][0]
    assert found[TREE][1] > 1.1 * found[CHAIN][1]


@pytest.mark.parametrize("open_pair", ["eagle", "eagle3"], indirect=True)
def test_nodes_are_those_of_plain_code(
    open_pair: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind prompts in parts, behind paths beside the chain, and at ends of blocks."""
    method, paths = request.node.callspec.params["open_pair"], parse_tree(TREE).paths
    model, head = eagle.model_weights("qwen3", 5), spoiled_head(method)
    seen: list[tuple[list[int], list[int]]] = []
    propose = TreeHeads.propose

    def spy(self: TreeHeads, wanted: Sequence[Wanted]) -> list[list[int]]:
        seen.extend((list(one.request.token_ids), list(one.made)) for one in wanted)
        return propose(self, wanted)

    monkeypatch.setattr(TreeHeads, "propose", spy)
    prompts = [TokensPrompt([(n * i * i + i) % 251 for i in range(9 + 7 * n)]) for n in range(1, 4)]
    options = {"enable_prefix_caching": False, "block_size": 16, "max_num_batched_tokens": 30}
    with open_pair(TREE, **options) as llm:
        llm.generate(prompts, GREEDY)
    assert len({len(made) for _, made in seen}) > 1
    for ids, made in seen[::3]:
        tokens = dict(zip(paths, made, strict=False))
        behind = {}
        for path, token in tokens.items():
            if path[:-1] not in behind:
                before = [tokens[path[: n + 1]] for n in range(len(path) - 1)]
                behind[path[:-1]] = eagle.logits_behind(method, model, head, ids, before)
            logits = behind[path[:-1]]
            wanted = logits.sort(descending=True).values[path[-1]]
            assert abs(logits[token] - wanted) < 1e-4 * logits.max(), (len(ids), path)


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


@pytest.mark.parametrize("open_pair", ["eagle"], indirect=True)
def test_kernels_of_trees_are_called_at_the_start(
    open_pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = list[int]()  # tokens of each call
    attend = TreeAttention.__call__

    def spy(self: TreeAttention, q: torch.Tensor, *rest: object) -> torch.Tensor:
        called.append(len(q))
        return attend(self, q, *rest)

    monkeypatch.setattr(TreeAttention, "__call__", spy)
    with open_pair(TREE):
        # The model's layers without a node, and the head's for two levels of two nodes.
        assert called == [*SMALLEST * eagle.LAYERS, 2, 2]


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
        "model": str(checkpoint / "medusa"),
        "speculative_token_tree": TREE,
    } | changes
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        open_pair(None, speculative_config=options)


def test_chains_take_the_place_of_trees_in_models_with_windows(
    checkpoint: Path, plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why, and the chains are as long as the tree is deep."""
    windows = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2}
    model = eagle.write_model(
        tmp_path / "model", "qwen3", eagle.model_weights("qwen3", 5), **windows
    )
    shutil.copy(checkpoint / "model" / "tokenizer.json", model)
    options = {"platform": "cpu", "max_num_seqs": 8, "seed": 3, "plugins": plugins}
    with LLM(str(model), **options) as llm:
        expected = answers(llm)
    head = {"method": "eagle3", "model": str(checkpoint / "eagle3")}
    asked = head | {"speculative_token_tree": TREE}
    with LLM(str(model), speculative_config=asked, **options) as llm:
        check(answers(llm), expected)
        assert llm.stats().num_accepted_tokens > 0
        assert llm.engine.setup.config.draft_tree is None
        assert llm.engine.setup.config.num_speculative_tokens == 3
        change = llm.changes[-1]
    [line] = [record.getMessage() for record in caplog.records if "trees" in record.getMessage()]
    assert line == f"drafts are {change.reason}"
    assert line == (
        "drafts are chains, not trees: the model has layers with a window, where the nodes of a "
        "tree have no places"
    )


def test_more_choices_than_a_head_has_tokens_are_refused(
    checkpoint: Path, plugins: PluginManager, tmp_path: Path
) -> None:
    settings = {**eagle.HEAD_CONFIGS["eagle3"], "draft_vocab_size": 2}
    head = eagle.write(tmp_path / "head", spoiled_head("eagle3"), **settings)
    options = {"method": "eagle3", "model": str(head), "speculative_token_tree": "[(0,), (2,)]"}
    with pytest.raises(ConfigError, match="node of choice 2, but the head guesses 2 tokens"):
        LLM(str(checkpoint / "model"), platform="cpu", plugins=plugins, speculative_config=options)


def test_a_deep_tree_fits_a_short_model(
    checkpoint: Path, plugins: PluginManager, tmp_path: Path
) -> None:
    """Of rows without room for a level, as at the start, nobody's tokens take places that exist."""
    tree = str([(0,) * n for n in range(1, 33)] + [(1,), (1, 0)])
    options = {
        "method": "eagle",
        "model": str(checkpoint / "eagle"),
        "speculative_token_tree": tree,
    }
    settings = {"platform": "cpu", "plugins": plugins, "max_model_len": 32, "block_size": 16}
    model = str(checkpoint / "model")
    with LLM(model, speculative_config=options, **settings) as llm:
        found = llm.generate(TokensPrompt([5, 6, 7]), GREEDY)
    with LLM(model, **settings) as llm:
        check(found[0].outputs, llm.generate(TokensPrompt([5, 6, 7]), GREEDY)[0].outputs)
