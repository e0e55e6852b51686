"""The bootstrap: what it decides for the user, and what it refuses."""

import re
import warnings
from pathlib import Path

import pytest

from hotshoe.builtin.null import NullPlatform
from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.core.boot import load_tokenizer
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import CheckpointError, ConfigError, PlatformError, PluginError, SelectionError
from hotshoe.platform import Available, Change, DeviceFacts, Platform
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint


class Opinionated(Platform):
    """A platform that decides the block size and is asynchronous."""

    name = "opinionated"
    asynchronous = True

    def probe(self) -> Available:
        return Available(9)

    def facts(self) -> DeviceFacts:
        return DeviceFacts("opinionated", "cpu", "device", "any", 1 << 30, 1)

    def resolve(self, config: EngineConfig) -> list[Change]:
        return [] if config.block_size else [Change("block_size", 48, "it likes 48")]


def fail(*arguments: object) -> None:
    raise KeyError("oh")


class Plugin:
    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_models(self) -> dict[str, object]:
        nothing = lambda config, ctx: None  # noqa: E731
        return {"Failing": fail, "Missing": "json:nowhere", "Nothing": nothing}

    @hookimpl
    def hotshoe_quantizations(self) -> dict[str, object]:
        return {"failing": fail}

    def __init__(self, path: Path) -> None:
        self.path = path

    @hookimpl
    def hotshoe_platforms(self) -> dict[str, object]:
        return {"opinionated": Opinionated, "null": NullPlatform}

    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        return {"tiny": str(self.path)}

    @hookimpl
    def hotshoe_encoders(self) -> dict[str, int]:
        return {"TinyEncoder": 2}

    @hookimpl
    def hotshoe_model_lengths(self) -> dict[str, int]:
        return {"Tiny": 77}


@pytest.fixture
def installed(model_dir: Path) -> PluginManager:
    return PluginManager([EntryPoint("plugin", "dist", "1", lambda: Plugin(model_dir))])


def changes(setup) -> dict[str, object]:
    return {change.field: change.value for change in setup.changes}


def test_what_is_open_is_decided_with_reasons(installed: PluginManager) -> None:
    setup = prepare(EngineConfig(model="tiny"), installed)
    assert changes(setup) == {
        "platform": "opinionated",
        "max_model_len": 64,
        "dtype": "float32",
        "block_size": 48,
        "kv_cache_dtype": "float32",
        "distributed_executor_backend": "uni",
        "async_scheduling": True,
        "max_num_batched_tokens": 2048,
    }
    assert all(change.reason for change in setup.changes)
    for field, value in changes(setup).items():
        assert getattr(setup.config, field) == value


@pytest.mark.parametrize(("length", "budget"), [(64, 2048), (3002, 3000)])
def test_a_step_holds_the_longest_prompt_of_an_encoder(installed, length, budget) -> None:
    known = {"architectures": ["TinyEncoder"], "max_position_embeddings": length}
    setup = prepare(EngineConfig(model="tiny", hf_overrides=known), installed)
    assert setup.config.max_model_len == length - 2
    assert setup.config.max_num_batched_tokens == budget
    said = {"model": "tiny", "hf_overrides": known, "max_num_batched_tokens": 40, "max_num_seqs": 2}
    assert prepare(EngineConfig(**said), installed).config.max_model_len == 40
    assert prepare(EngineConfig(**said, max_model_len=20), installed).config.max_model_len == 20
    with pytest.raises(ConfigError, match="max_num_batched_tokens 40 is below max_model_len 41"):
        prepare(EngineConfig(**said, max_model_len=41), installed)
    with pytest.raises(ConfigError, match=f"9000 exceeds the model's {length - 2} positions"):
        prepare(EngineConfig(model="tiny", hf_overrides=known, max_model_len=9000), installed)


def test_what_the_user_said_stays(installed: PluginManager) -> None:
    said = {
        "platform": "opinionated",
        "max_model_len": 32,
        "dtype": "bfloat16",
        "block_size": 8,
        "kv_cache_dtype": "float32",
        "distributed_executor_backend": "uni",
        "async_scheduling": False,
        "max_num_batched_tokens": 512,
    }
    setup = prepare(EngineConfig(model="tiny", **said), installed)
    assert setup.changes == ()
    assert setup.config == ResolvedConfig(model="tiny", **said)


def test_core_decides_what_the_platform_leaves_open(installed: PluginManager) -> None:
    setup = prepare(EngineConfig(model="tiny", platform="null"), installed)
    assert changes(setup)["block_size"] == 16
    assert changes(setup)["async_scheduling"] is False


def test_no_more_rows_than_the_budget_can_advance(installed: PluginManager) -> None:
    config = EngineConfig(model="tiny", max_num_batched_tokens=32, max_num_seqs=100)
    assert changes(prepare(config, installed))["max_num_seqs"] == 32


def test_overrides_reach_the_model(installed: PluginManager) -> None:
    config = EngineConfig(model="tiny", hf_overrides={"max_position_embeddings": 7})
    assert prepare(config, installed).config.max_model_len == 7


def test_a_plugin_knows_the_length_that_a_file_leaves_out(installed: PluginManager) -> None:
    overrides = {"architectures": ["Tiny"], "max_position_embeddings": None}
    config = EngineConfig(model="tiny", hf_overrides=overrides)
    assert prepare(config, installed).config.max_model_len == 77


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_model_len": 65}, ConfigError, "exceeds the model's 64 positions"),
        ({"model": "tyny"}, CheckpointError, "no model at tyny"),
        ({"platform": "nul"}, PluginError, "did you mean null"),
        ({"kernel": {"atention": "x"}}, SelectionError, "did you mean attention"),
        ({"kernel": {"attention": "x"}}, SelectionError, "no candidate 'x'"),
        ({"hf_overrides": {"architectures": []}}, CheckpointError, "names no architecture"),
        ({"hf_overrides": {"dtype": "float64"}}, ConfigError, "choose another with --dtype"),
    ],
)
def test_refusals(installed: PluginManager, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        prepare(EngineConfig(**{"model": "tiny", **options}), installed)


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "unknown architecture 'Any'"), ({"quantization": "int7"}, "unknown architecture")],
)
def test_unknown_architectures_are_refused_by_name(installed, options: dict, message: str) -> None:
    setup = prepare(EngineConfig(model="tiny", platform="opinionated", **options), installed)
    with pytest.raises(PluginError, match=message):
        setup.create_worker()


class Library:
    """Serves any architecture that no plugin describes, in its fashion."""

    HOTSHOE_HOOK_API = 2

    @hookimpl
    def hotshoe_model_impls(self) -> dict[str, str]:
        return {"library": "nowhere.at_all:build"}


@pytest.mark.parametrize(
    ("architecture", "asked", "chosen"),
    [
        ("Any", "auto", "library"),
        ("Any", "native", None),
        ("Failing", "auto", None),
        ("Failing", "library", "nowhere"),
        ("Failing", "libary", "did you mean library.*choices: auto, library, native"),
    ],
)
def test_whose_code_computes_a_model(model_dir: Path, architecture, asked, chosen) -> None:
    points = [
        EntryPoint("library", "dist", "1", Library),
        EntryPoint("plugin", "dist", "1", lambda: Plugin(model_dir)),
    ]
    overrides = {"architectures": [architecture]}
    config = EngineConfig("tiny", platform="opinionated", model_impl=asked, hf_overrides=overrides)
    setup = prepare(config, PluginManager(points))
    assert changes(setup).get("model_impl") == ("library" if asked == "auto" and chosen else None)
    wanted = {None: architecture, "library": "nowhere"}.get(chosen, chosen)
    with pytest.raises(PluginError, match=wanted):
        setup.create_worker().build()


@pytest.mark.parametrize(
    ("architecture", "options", "cause"),
    [
        ("Failing", {}, "Failing: KeyError: 'oh'"),
        ("Missing", {}, "Missing: AttributeError: .*'nowhere'"),
        ("Nothing", {}, "Nothing: TypeError: it built NoneType, which is no Model"),
        ("Failing", {"quantization": "failing"}, "failing: KeyError: 'oh'"),
    ],
)
def test_a_plugin_whose_model_or_method_fails_is_named(
    installed: PluginManager, architecture: str, options: dict, cause: str
) -> None:
    overrides = {"hf_overrides": {"architectures": [architecture]}, **options}
    setup = prepare(EngineConfig(model="tiny", platform="opinionated", **overrides), installed)
    with pytest.raises(PluginError, match=rf"plugin plugin \(dist 1\) is defective: {cause}"):
        setup.create_worker().build()


@pytest.mark.parametrize(
    ("method", "result", "cause"),
    [
        ("resolve", [Change("blocksize", 16, "it likes 16")], "TypeError: .*'blocksize'"),
        ("dtype_for", None, "TypeError: cannot unpack"),
        ("create_worker", 3, "TypeError: create_worker.. returned int, not a Worker"),
    ],
)
def test_a_platform_that_answers_with_something_else_is_named(
    installed: PluginManager, monkeypatch, method: str, result: object, cause: str
) -> None:
    monkeypatch.setattr(Opinionated, method, lambda self, *arguments: result)
    with pytest.raises(PlatformError, match=f"platform opinionated is defective: {cause}"):
        prepare(EngineConfig(model="tiny"), installed).create_worker()


def test_a_platform_that_raises_is_named_with_file_and_line(
    installed: PluginManager, monkeypatch
) -> None:
    def resolve(self, config: EngineConfig) -> None:
        raise KeyError("oh")

    monkeypatch.setattr(Opinionated, "resolve", resolve)
    place = rf"{re.escape(__file__)}:{resolve.__code__.co_firstlineno + 1};"
    with pytest.raises(PlatformError, match=rf"defective: KeyError: 'oh' at {place}"):
        prepare(EngineConfig(model="tiny"), installed)


def test_a_worker_that_answers_as_hook_api_1_had_it_is_refused(model_dir: Path) -> None:
    class Old:
        HOTSHOE_HOOK_API = 1

        @hookimpl
        def hotshoe_platforms(self) -> dict[str, object]:
            return {"null": NullPlatform}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plugins = PluginManager([EntryPoint("old", "old-platform", "3", Old)])
        setup = prepare(EngineConfig(model=str(model_dir), platform="null"), plugins)
    with pytest.raises(PluginError, match=r"plugin old \(old-platform 3\) .* hook API 1; since 2"):
        setup.create_worker()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_redundant_experts": 2}, "num_redundant_experts: without enable_eplb no expert"),
        ({"enable_eplb": True}, "enable_eplb moves experts .* needs enable_expert_parallel"),
        (
            {"enable_eplb": True, "enable_expert_parallel": True},
            "enable_eplb moves experts .* tensor_parallel_size of 2 or more",
        ),
        (
            {"enable_eplb": True, "tensor_parallel_size": 2, "enable_expert_parallel": True}
            | {"batch_invariant": True},
            "enable_eplb and batch_invariant exclude each other",
        ),
        ({"pipeline_steps": 2}, "pipeline_steps needs pipeline_parallel_size above 1"),
        ({"pipeline_layers": [2]}, "pipeline_layers needs pipeline_parallel_size above 1"),
        (
            {"pipeline_parallel_size": 2, "pipeline_layers": [2]},
            "must be 2 numbers of at least 1, one for each of the stages .* not 2",
        ),
        ({"pipeline_parallel_size": 2, "pipeline_layers": [2, 0]}, "2 numbers of at least 1"),
    ],
)
def test_a_division_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(EngineConfig(platform="null", **options))


def test_a_tokenizer_may_be_named_as_a_model_is(installed: PluginManager, model_dir: Path) -> None:
    setup = prepare(EngineConfig(model="tiny", tokenizer="tiny"), installed)
    assert changes(setup)["tokenizer"] == str(model_dir)
    assert load_tokenizer(setup.config, Path("/nowhere"), installed) is not None
