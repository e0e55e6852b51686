"""`hotshoe serve`: options of extensions, warnings."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from hotshoe.config import EngineConfig, option
from hotshoe.errors import ConfigError, PluginError
from hotshoe_server.command import (
    check_early,
    check_named,
    find_extensions,
    make_fleet,
    warn,
    with_options,
    with_turns,
)
from hotshoe_server.config import ServerConfig
from hotshoe_server.extensions import ServerExtension
from hotshoe_server.plans import make_plans, plan_of


@dataclass(frozen=True)
class Options:
    """Of some extension."""

    size: int = option(3, "size")


def test_every_extension_gets_its_own_options() -> None:
    given = Options(5)
    extensions = {"a": ServerExtension("m:a", Options), "b": ServerExtension("m:b")}
    assert {n: o for n, (_, o) in with_options(extensions, [given]).items()} == {
        "a": given,
        "b": None,
    }


@pytest.mark.parametrize("target", ["no_such_module:EXTENSION", "hotshoe:NO_SUCH", "nothing"])
def test_an_extension_that_cannot_be_imported_is_named(target: str) -> None:
    plugins = SimpleNamespace(mapping=lambda hook: {"torn": target})
    with pytest.raises(PluginError, match=r"server extension torn is broken: \w+Error: "):
        find_extensions(plugins)


def test_installed_extensions_are_light_to_find(plugins) -> None:
    for extension in find_extensions(plugins).values():
        assert isinstance(extension, ServerExtension)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_key": ["some-key-1"]}, False),
        ({"host": "0.0.0.0", "api_key_env": "KEYS"}, False),
        ({"host": "::"}, True),
        ({"host": "::", "uds": "/x"}, False),
    ],
)
def test_open_doors_are_named(caplog, options: dict[str, object], warned: bool) -> None:
    warn(ServerConfig(**options))
    assert any("lets every machine" in message for message in caplog.messages) is warned


def test_a_name_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="--served-model-name needs MODEL"):
        check_named({"served_model_name": ["mine"], "dtype": "auto"})
    check_named({"served_model_name": ["mine"], "model": "demo"})
    check_named({})


def test_variables_that_are_the_servers_own(plugins) -> None:
    config = ServerConfig(default_chat_template_kwargs={"messages": []})
    with pytest.raises(ConfigError, match="may not set messages"):
        check_early(config, plugins)


def test_a_key_that_is_not_read_is_named(caplog, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-key-for-tests")
    warn(ServerConfig(api_key=["a-key-for-tests"]))
    assert not caplog.messages
    warn(ServerConfig())
    assert "VLLM_API_KEY is not read" in caplog.text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tool_call_parser": "nonsense"}, PluginError),
        ({"default_chat_template_kwargs": {"messages": []}}, ConfigError),
    ],
)
def test_a_further_model_is_checked_before_it_is_loaded(plugins, options, error) -> None:
    engine, config = EngineConfig(), ServerConfig()
    fleet = make_fleet(make_plans(engine, config, True), engine, plugins, print)
    plan = plan_of("more", {"model": "/no/such/model", **options}, engine, config)
    with pytest.raises(error, match=r"nonsense|messages"):
        fleet.build(plan)


@pytest.mark.parametrize(
    ("keys", "policy", "found"),
    [(2, "auto", "fair"), (1, "auto", "auto"), (0, "auto", "auto"), (2, "fcfs", "fcfs")],
)
def test_several_keys_are_served_in_turns(keys: int, policy: str, found: str) -> None:
    config = ServerConfig(api_key=[f"key-number-{n}" for n in range(keys)])
    engine = EngineConfig("demo", scheduling_policy=policy)
    assert with_turns(engine, config).scheduling_policy == found
