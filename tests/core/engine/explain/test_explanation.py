"""Explanations: the engine's own decisions, without a weight and without a device."""

from dataclasses import replace

import pytest

from hotshoe import LLM
from hotshoe.config import EngineConfig
from hotshoe.engine.explain.explanation import declared_targets, explain
from hotshoe.errors import ConfigError, PluginError
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import HOOK_API, PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.slots import (
    COMPOSED,
    REFERENCE,
    SLOTS,
    Candidate,
    NormSpec,
    Verdict,
    accept,
    refuse,
)

CONFIG = EngineConfig("demo", platform="cpu", max_model_len=256, max_num_seqs=4)


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return PluginManager()


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, ""),
        ({"enforce_eager": True}, "none recorded (enforce_eager)"),
        ({"optimization_level": 0}, "none recorded (optimization_level 0)"),
        ({"enable_lora": True, "max_loras": 2, "enforce_eager": True}, "none recorded"),
        ({"optimization_level": 1}, "of decode steps alone (optimization_level 1)"),
    ],
)
def test_what_is_explained_is_what_is_done(
    plugins: PluginManager, options: dict[str, object], note: str
) -> None:
    config = replace(CONFIG, **options)
    told = explain(config, plugins)
    with LLM(config=config, plugins=plugins) as llm:
        assert set(told.decisions) == set(llm.decisions)
        memory = {need.use: need.bytes for need in told.memory}
        weights = memory["weights"] + memory.get("adapters", 0)
        assert weights == pytest.approx(llm.memory["weights"], rel=0.01)
        assert memory["KV cache"] == llm.memory["kv_cache"]
        selector = llm.engine.setup.selector
        uses = dict(selector.uses)
        llm.engine.setup.torch_worker().build()  # as after a sleep
        assert selector.uses
        assert selector.uses.items() <= uses.items()
    assert sum(told.shares) == pytest.approx(1)
    assert [n for d, n in zip(told.decisions, told.uses, strict=True) if d.slot == "sample"] == [1]
    assert told.unbuilt == {}
    [graphs] = [need.note for need in told.memory if need.use == "graphs"]
    assert graphs.startswith(note)
    assert any(d.slot == "graph" for d in told.decisions) != note.startswith("none")


def test_candidates_are_asked_about_the_device_itself() -> None:
    """A pack that judges by where tensors lie is chosen on paper as it is by the engine."""
    asked = set()

    def judge(spec: NormSpec, facts: DeviceFacts) -> Verdict:
        asked.add(facts)
        return refuse("elsewhere") if facts.device != "cpu" or spec.quant else accept(10**6)

    class Pack:
        HOTSHOE_HOOK_API = HOOK_API

        @hookimpl
        def hotshoe_candidates(self) -> list[Candidate]:
            return [Candidate("rms_norm", "pack", judge, SLOTS["rms_norm"].reference)]

    plugins = PluginManager([*installed_entry_points(), EntryPoint("pack", "pack", "1", Pack)])
    told = explain(CONFIG, plugins)
    assert asked == {told.facts}
    assert {d.chosen for d in told.decisions if d.slot == "rms_norm"} == {"pack"}
    with LLM(config=CONFIG, plugins=plugins) as llm:
        assert set(told.decisions) == set(llm.decisions)


def test_a_device_that_is_not_here(plugins: PluginManager) -> None:
    for target in declared_targets(CONFIG, plugins):
        told = explain(replace(CONFIG, platform="auto"), plugins, target.facts)
        assert told.facts == target.facts
        assert told.config.platform == "cpu"
        assert all(decision.native for decision in told.decisions), target.name


def test_several_of_a_device_that_is_not_here(plugins: PluginManager) -> None:
    """However many, where the platform knows of several; what is here is not asked."""
    for target in declared_targets(CONFIG, plugins):
        told = explain(replace(CONFIG, tensor_parallel_size=2), plugins, target.facts)
        assert [d.spec.size for d in told.decisions if d.slot == "communicator"] == [2]
    alone = DeviceFacts("null", "cpu", "nothing", "none", 1 << 30, 1)
    with pytest.raises(ConfigError, match="platform null runs on one device"):
        explain(replace(CONFIG, platform="null", tensor_parallel_size=2), plugins, alone)


def test_targets_of_all_platforms_but_those_that_cannot_be_imported() -> None:
    class Broken:
        HOTSHOE_HOOK_API = 2

        @hookimpl
        def hotshoe_platforms(self) -> dict[str, str]:
            return {"broken": "no_such_module:Platform"}

    plugins = PluginManager([*installed_entry_points(), EntryPoint("b", "d", "1", Broken)])
    found = declared_targets(replace(CONFIG, platform="auto"), plugins)
    assert {*declared_targets(CONFIG, plugins)} < {*found}
    with pytest.raises(ModuleNotFoundError):
        declared_targets(replace(CONFIG, platform="broken"), plugins)


def test_a_device_that_nothing_is_made_for(plugins: PluginManager) -> None:
    nothing = DeviceFacts("cpu", "cpu", "a toaster", "t1", 1 << 24, 1)
    told = explain(CONFIG, plugins, nothing)
    assert {decision.chosen for decision in told.decisions} == {REFERENCE, COMPOSED}
    assert "no build of the native kernels" in dict(told.decisions[0].others)["native"].reason
    [cache] = [need for need in told.memory if need.use == "KV cache"]
    assert cache.note.startswith("does not fit: ")


def test_facts_of_another_platform(plugins: PluginManager) -> None:
    foreign = DeviceFacts("toaster", "cpu", "a toaster", "t1", 1 << 24, 1)
    with pytest.raises(ConfigError, match="of platform toaster, not of cpu"):
        explain(CONFIG, plugins, foreign)
    with pytest.raises(PluginError, match="unknown platform 'toaster'"):
        explain(replace(CONFIG, platform="auto"), plugins, foreign)


def test_a_platform_with_its_own_worker_has_no_decisions(plugins: PluginManager) -> None:
    told = explain(replace(CONFIG, platform="null"), plugins)
    assert told.decisions == ()
    assert told.memory == ()


def test_weights_in_host_memory_are_a_need_of_their_own(plugins: PluginManager) -> None:
    facts = DeviceFacts("cpu", "other", "a test's device", "any", 1 << 34, 1)
    plain, away = (
        {need.use: need for need in explain(replace(CONFIG, **options), plugins, facts).memory}
        for options in ({}, {"offload_weights": "proj"})
    )
    assert "host memory" not in plain
    assert plain["weights"].bytes > away["weights"].bytes
    assert "(offload_weights), which save" in away["host memory"].note
    own = plain["weights"].bytes - away["weights"].bytes
    assert own < away["host memory"].bytes < plain["weights"].bytes
    with pytest.raises(ConfigError, match="computes in host memory"):
        explain(replace(CONFIG, cpu_offload_gb=1.0), plugins)
    with pytest.raises(ConfigError, match="both say which weights"):
        replace(CONFIG, cpu_offload_gb=1.0, offload_weights="proj")
    with pytest.raises(ConfigError, match="is no regular expression"):
        replace(CONFIG, offload_weights="(")
    with pytest.raises(ConfigError, match="platform null has a worker of its own"):
        LLM("demo", platform="null", offload_weights="proj", plugins=plugins)
