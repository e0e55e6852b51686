"""Who is asked for drafts, when, and what becomes of a proposer that misbehaves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.core import EngineCore
from hotshoe.engine.messages import Add
from hotshoe.engine.setup import prepare
from hotshoe.errors import ConfigError, EngineDeadError, PluginError
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint
from hotshoe.types import SamplingParams, TokenOutput

CONFIG = {"method": "counting", "num_speculative_tokens": 3}


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


class Proposers:
    """The plugin of both."""

    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_proposers(self) -> dict[str, object]:
        return {"counting": Counting, "wrong": Wrong}


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
    options = {"method": "wrong", "num_speculative_tokens": 3, "answer": answer}
    engine = core(model_dir, proposing, speculative_config=options)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=20)))
    with pytest.raises(EngineDeadError, match=rf"plugin proposers .* wrong: .*{message}"):
        run(engine)


def test_bad_settings_are_refused_at_start(model_dir: Path, proposing: PluginManager) -> None:
    cases = [
        ({"method": "count"}, "did you mean counting.*choices: counting, wrong"),
        ({"method": "counting", "x": 1}, "counting takes no option, such as x"),
        ({"method": "wrong"}, "plugin proposers .*KeyError"),
    ]
    for options, message in cases:
        with pytest.raises((PluginError, ConfigError), match=message):
            core(model_dir, proposing, speculative_config={"num_speculative_tokens": 3, **options})


def test_without_any_proposer_the_message_says_where_they_are(model_dir: Path, plugins) -> None:
    with pytest.raises(PluginError, match="none installed; hotshoe-speculation has the usual ones"):
        core(model_dir, plugins)
