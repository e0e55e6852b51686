"""Who is asked for drafts, when, and what becomes of a proposer that misbehaves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.start.setup import prepare
from hotshoe.engine.wire.messages import Add
from hotshoe.errors import ConfigError, EngineDeadError, PluginError
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.speculation.drafting import device_search
from hotshoe.types import SamplingParams, TokenOutput

CONFIG = {"method": "counting", "num_speculative_tokens": 3, "adaptive": False}


class Counting:
    """Counts upwards, which the null platform does as well; every fourth guess is wrong."""

    def __init__(self, options: Mapping[str, object]) -> None:
        if options:
            raise ConfigError(f"counting takes no option, such as {next(iter(options))}")
        self.asked: list[int] = []

    def follow(self) -> "Counting":
        return self

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        self.asked.append(len(token_ids))
        return [t + (t % 4 == 0) for t in range(token_ids[-1] + 1, token_ids[-1] + 1 + limit)]


class Wrong(Counting):
    """Returns what options say, whatever it is."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.answer = options["answer"]

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        if isinstance(self.answer, str):
            raise RuntimeError(self.answer)
        return self.answer  # type: ignore[return-value]


class Right(Counting):
    """Is always right."""

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        return list(range(token_ids[-1] + 1, token_ids[-1] + 1 + limit))


class Searching:
    """Guesses on the device: the last token and one more, or what options say."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.answer = options.get("answer")

    def search(self, tokens: torch.Tensor, lengths: torch.Tensor, limit: int) -> torch.Tensor:
        if isinstance(self.answer, str):
            raise RuntimeError(self.answer)
        last = tokens.gather(1, lengths[:, None] - 1)
        return last + torch.arange(1, limit + 1) if self.answer is None else torch.ones(self.answer)


class Proposers:
    """The plugin of them all."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_proposers(self) -> dict[str, object]:
        proposers = {"counting": Counting, "learning": Learning, "right": Right, "wrong": Wrong}
        return {**proposers, "searching": Searching}


@pytest.fixture
def proposing() -> PluginManager:
    import hotshoe.builtin.plugin as builtin

    return PluginManager(
        [
            EntryPoint("core", "hotshoe", "0", lambda: builtin),
            EntryPoint("proposers", "tests", "0", Proposers),
        ]
    )


def core(model_dir: Path, plugins: PluginManager, **options: object) -> EngineCore:
    settings = {"speculative_config": CONFIG, **options}
    return EngineCore(
        prepare(EngineConfig(model=str(model_dir), platform="null", **settings), plugins)
    )


def run(engine: EngineCore) -> dict[str, list[TokenOutput]]:
    found: dict[str, list[TokenOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
    return found


@pytest.mark.parametrize("overlapping", [False, True])
def test_steps_bring_several_tokens_and_the_same_ones(
    model_dir: Path, proposing: PluginManager, overlapping: bool
) -> None:
    engine = core(model_dir, proposing, async_scheduling=overlapping)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=20)))
    engine.add(Add(["b"], [30, 40], SamplingParams(max_tokens=9, stop_token_ids=(46,))))
    found = run(engine)
    tokens = {name: [t for o in outputs for t in o.token_ids] for name, outputs in found.items()}
    assert tokens == {"a": list(range(2, 22)), "b": list(range(41, 47))}
    assert max(len(output.token_ids) for output in found["a"]) > 1
    stats = engine.stats()
    assert stats.num_generated_tokens == 26
    assert stats.num_steps < 20
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens <= 3 * stats.num_drafts
    assert stats.num_accepted_at[0] >= stats.num_accepted_at[1] >= stats.num_accepted_at[2]
    assert engine._drafting is not None and not engine._drafting._followed


def test_a_request_that_was_dropped_is_forgotten(model_dir: Path, proposing: PluginManager) -> None:
    engine = core(model_dir, proposing)
    engine.add(Add(["a", "b"], [1], SamplingParams(max_tokens=20, n=2)))
    engine.step()
    engine.abort(["a"])
    assert engine._drafting is not None and set(engine._drafting._followed) == {"b"}


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_step_with_drafts_starts_before_the_last_ones_tokens_are_looked_at(
    model_dir: Path, proposing: PluginManager, overlapping: bool
) -> None:
    """It holds all sequences, and one that is dropped meanwhile disturbs nobody."""
    engine = core(model_dir, proposing, async_scheduling=overlapping)
    engine.add(Add(["a", "b"], [1], SamplingParams(max_tokens=20, n=2)))
    found: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(3):
        for output in engine.step():
            found[output.request_id] += output.token_ids
    assert [len(plan.rows) for plan, _ in engine._in_flight] == [2] * overlapping
    engine.abort(["a"])
    for name, outputs in run(engine).items():
        found[name] += [t for output in outputs for t in output.token_ids]
    assert found["a"] == list(range(2, 2 + len(found["a"])))
    assert found["b"] == list(range(2, 22))


def test_a_step_that_waited_for_a_recording_tells_nothing_of_the_price(
    model_dir: Path, proposing: PluginManager, monkeypatch
) -> None:
    engine = core(model_dir, proposing, speculative_config={"method": "counting"})
    timed: list[float] = []
    monkeypatch.setattr(engine._drafting._budget, "stepped", lambda *args: timed.append(args[0]))
    execute = engine.workers.main.execute

    def recording(plan):
        step = execute(plan)
        step.value.recorded = plan.step_id < 6
        return step

    monkeypatch.setattr(engine.workers.main, "execute", recording)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=12)))
    run(engine)
    assert len(timed) == 12 - 6


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("it broke", "RuntimeError: it broke"),
        ([1, 2, 3, 4], "it proposed 4 tokens where 3 were wanted"),
        ([5, -1], r"it proposed \[5, -1\], but token ids lie below 131072"),
        ([131072], "token ids lie below 131072"),
        (["x"], "TypeError"),
    ],
)
def test_a_proposer_that_misbehaves_is_named(
    model_dir: Path, proposing: PluginManager, answer: object, message: str
) -> None:
    options = {"method": "wrong", "num_speculative_tokens": 3, "adaptive": False, "answer": answer}
    engine = core(model_dir, proposing, speculative_config=options)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=20)))
    with pytest.raises(EngineDeadError, match=rf"plugin proposers .* wrong: .*{message}"):
        run(engine)


class Learning(Counting):
    """Keeps what it is given of ended sequences."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self.learned: list[tuple[list[int], int]] = []

    def learn(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self.learned.append((list(token_ids), num_prompt_tokens))


class Clock:
    """Goes on by the seconds that the engine's last step would take."""

    def __init__(self, draft_s: float) -> None:
        self.draft_s, self.now = draft_s, 0.0

    def __call__(self) -> float:
        num_drafts = self.engine.stats().num_draft_tokens
        self.now += 1 + self.draft_s * (num_drafts - self.seen)
        self.seen = num_drafts
        return self.now

    def watch(self, engine: EngineCore) -> None:
        self.engine, self.seen = engine, 0
        assert engine._drafting is not None
        engine._drafting._clock = self


@pytest.mark.parametrize(
    ("most", "draft_s", "low", "high"),
    [
        ({}, 0.0, 4.0, 9.0),
        ({"num_speculative_tokens": 2}, 0.0, 2.5, 3.0),
        ({"num_speculative_tokens": 8}, 3.0, 1.0, 1.2),
    ],
)
@pytest.mark.parametrize("overlapping", [False, True])
def test_as_many_are_made_as_pay(
    model_dir: Path,
    proposing: PluginManager,
    most: dict[str, int],
    draft_s: float,
    low: float,
    high: float,
    overlapping: bool,
) -> None:
    options = {"speculative_config": {"method": "right", **most}, "async_scheduling": overlapping}
    longer = {"hf_overrides": {"max_position_embeddings": 1024}}
    engine = core(model_dir, proposing, **options, **longer)
    Clock(draft_s).watch(engine)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=900, ignore_eos=True)))
    [tokens] = [[t for o in outputs for t in o.token_ids] for outputs in run(engine).values()]
    assert tokens == list(range(2, 902))
    stats = engine.stats()
    assert low <= 900 / (stats.num_steps) <= high
    assert stats.num_draft_tokens == stats.num_accepted_tokens


def test_ended_sequences_are_learned_but_for_those_of_few(
    model_dir: Path, proposing: PluginManager
) -> None:
    options = {"method": "learning", "num_speculative_tokens": 3, "adaptive": False}
    engine = core(model_dir, proposing, speculative_config=options)
    params = SamplingParams(max_tokens=4)
    engine.add(Add(["a"], [1, 2], params))
    engine.add(Add(["b"], [50], params, cache_salt="secret"))
    engine.add(Add(["c"], [60], params, tenant="someone"))
    engine.add(Add(["d"], [70], params))
    engine.abort(["d"])
    run(engine)
    assert engine._drafting is not None
    proposer = engine._drafting._drafter._proposer
    assert isinstance(proposer, Learning)
    assert sorted(proposer.learned) == [([1, 2, 3, 4, 5, 6], 2), ([70], 1)]


def test_bad_settings_are_refused_at_start(model_dir: Path, proposing: PluginManager) -> None:
    cases = [
        (
            {"method": "count"},
            "did you mean counting.*choices: counting, draft_model, learning, mtp, right",
        ),
        ({"method": "counting", "x": 1}, "counting takes no option, such as x"),
        ({"method": "wrong"}, "plugin proposers .*KeyError"),
    ]
    for options, message in cases:
        with pytest.raises((PluginError, ConfigError), match=message):
            core(
                model_dir,
                proposing,
                speculative_config={"num_speculative_tokens": 3, "adaptive": False, **options},
            )


def test_without_any_proposer_the_message_says_where_they_are(model_dir: Path, plugins) -> None:
    with pytest.raises(PluginError, match="none installed; hotshoe-speculation has the usual ones"):
        core(model_dir, plugins)


def searched(plugins: PluginManager, **options: object) -> torch.Tensor | None:
    given = {"method": "searching", "num_speculative_tokens": 2, **options}
    search = device_search(EngineConfig("m", speculative_config=given), plugins)
    return None if search is None else search(torch.tensor([[5, 7]]), torch.tensor([1]), 2)


def test_a_search_on_the_device_is_the_proposers(proposing: PluginManager) -> None:
    found = searched(proposing, adaptive=False)
    assert found is not None and found.tolist() == [[6, 7]]
    assert searched(proposing, method="right") is None
    assert device_search(EngineConfig("m"), proposing) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("it broke", "RuntimeError: it broke"),
        ((1, 3), r"search\(\) returned torch.float32 \(1, 3\), not whole numbers \(1, 2\)"),
    ],
)
def test_a_search_that_misbehaves_is_named(
    proposing: PluginManager, answer: object, message: str
) -> None:
    with pytest.raises(
        PluginError, match=f"plugin proposers .*is defective: searching: .*{message}"
    ):
        searched(proposing, answer=answer)


def test_a_platform_with_a_worker_of_its_own_refuses_it(
    model_dir: Path, proposing: PluginManager
) -> None:
    with pytest.raises(ConfigError, match="platform null has a worker of its own, which looks up"):
        core(model_dir, proposing, speculative_config={**CONFIG, "method": "searching"})
