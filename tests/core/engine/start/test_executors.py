"""Who makes the worker: core's own executors, and one of a plugin."""

import sys
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.builtin.null import NullPlatform
from hotshoe.config import EngineConfig
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import ConfigError, PluginError
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint


class Elsewhere:
    """A plugin with an executor that makes something, and what it saw."""

    HOTSHOE_HOOK_API = HOOK_API

    def __init__(self, made: object) -> None:
        self.made, self.seen = made, []

    @hookimpl
    def hotshoe_executors(self) -> dict[str, object]:
        return {"elsewhere": self.run}

    def run(self, setup: object) -> object:
        self.seen.append(setup)
        return self.made


def executed(plugin: object, model: Path, **options: object):
    text = '{"architectures": ["Any"], "vocab_size": 9, "max_position_embeddings": 64}'
    (model / "config.json").write_text(text)
    plugins = PluginManager([EntryPoint("away", "dist", "1", lambda: plugin)])
    config = EngineConfig(str(model), platform="null", **options)
    return prepare(config, plugins, platform=NullPlatform()).create_worker()


def test_the_named_executor_makes_the_worker(tmp_path: Path) -> None:
    plugin = Elsewhere(NullPlatform().create_worker(EngineConfig()))
    assert executed(plugin, tmp_path, distributed_executor_backend="elsewhere") is plugin.made
    [setup] = plugin.seen
    assert setup.config.distributed_executor_backend == "elsewhere"
    assert executed(plugin, tmp_path) is not plugin.made


def test_an_executor_that_makes_no_worker_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"plugin away \(dist 1\) is defective: elsewhere: .*int"):
        executed(Elsewhere(3), tmp_path, distributed_executor_backend="elsewhere")


def test_unknown_executors_are_refused_before_anything_starts() -> None:
    config = EngineConfig(platform="null", distributed_executor_backend="rya")
    with pytest.raises(PluginError, match=r"unknown executor 'rya'.* mp, (ray, )?uni"):
        prepare(config)


def test_one_process_cannot_be_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullPlatform, "take_part", lambda *arguments: None)
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}
    setup = prepare(EngineConfig(platform="null", **options))
    with pytest.raises(ConfigError, match="uni is one process, but 2 ranks are asked for; use mp"):
        setup.create_worker()
    one, two = (
        prepare(EngineConfig(platform="null", tensor_parallel_size=size)).config for size in (1, 2)
    )
    assert (one.distributed_executor_backend, two.distributed_executor_backend) == ("uni", "mp")
    assert (one.async_scheduling, two.async_scheduling) == (False, True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the process in /proc")
def test_one_rank_in_a_process_of_its_own() -> None:
    with LLM("demo", platform="null", distributed_executor_backend="mp") as llm:
        [rank] = llm.engine.core.workers.main._group.ranks
        assert Path(f"/proc/{rank.process.pid}/comm").read_text() == "hotshoe-rank0\n"
        [output] = llm.generate(TokensPrompt([3]), SamplingParams(max_tokens=2, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 2
