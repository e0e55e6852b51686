"""Adapters that requests name before anybody has loaded them."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.server.conftest import Http, ScriptedEngine

from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError, ConfigError, PluginError, RequestError
from hotshoe_server import named_adapters
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import make_state
from hotshoe_server.named_adapters import NamedAdapters, find_resolvers, in_folder
from hotshoe_server.plans import make_plans

PREFIX = "base_model.model.model.layers.0.mlp.down_proj"


class AdapterEngine(ScriptedEngine):
    """Also keeps adapters, and refuses requests for others as the real one does."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.config = replace(self.config, enable_lora=True)
        self.info = replace(self.info, config=self.config)
        self.loaded: dict[str, str] = {}
        self.in_use: set[str] = set()

    async def generate(self, prompt: Any, params: Any, request_id: str, *rest: Any, **more: Any):
        if params.adapter is not None and params.adapter not in self.loaded:
            raise RequestError(f"no adapter {params.adapter!r} is loaded", "adapter")
        async for update in super().generate(prompt, params, request_id, *rest, **more):
            yield update

    async def load_adapter(self, name: str, path: str) -> None:
        self.calls.append(("load_adapter", name))
        await asyncio.sleep(0.01)
        if "broken" in name:
            raise CheckpointError(f"{path} holds NaN")
        self.loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        if name in self.in_use:
            raise RequestError("in use", "lora_name")
        self.calls.append(("unload_adapter", name))
        del self.loaded[name]

    async def adapters(self) -> dict[str, str]:
        return dict(self.loaded)


@pytest.fixture
def engine(tokenizer) -> AdapterEngine:
    return AdapterEngine(tokenizer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of adapters a, b, c and broken, beside one that is not in it."""
    found = tmp_path / "adapters"
    for name in ("adapters/a", "adapters/b", "adapters/c", "adapters/broken", "outside"):
        make(tmp_path / name)
    (found / "empty").mkdir()
    return found


def make(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text("{}")


@pytest.fixture
def open_named(engine, plugins, folder) -> Callable[..., Http]:
    """Build a server that finds adapters; options as for ServerConfig."""

    def build(resolvers: Any = None, **options: Any) -> Http:
        config = ServerConfig(served_model_name=["demo"], lora_dir=str(folder), **options)
        state = make_state(config, engine, plugins)
        found = find_resolvers(config, plugins) if resolvers is None else resolvers
        names = NamedAdapters(state, found, asks_plugins=resolvers is not None)
        http = Http(create_app(state, None, names))
        http.state, http.names = state, names
        return http

    return build


def ask(http: Http, model: str, **body: Any) -> Any:
    return http.post("/v1/completions", model=model, prompt="x", **body)


def loads(engine: AdapterEngine) -> list[str]:
    return [call[1] for call in engine.calls if call[0] == "load_adapter"]


def test_a_name_in_the_folder_is_loaded_once(open_named, engine, folder) -> None:
    http = open_named()
    assert [ask(http, name).status_code for name in ("a", "demo", "a", "b")] == [200] * 4
    assert loads(engine) == ["a", "b"]
    assert engine.loaded["a"] == str(folder / "a")
    assert [r.params.adapter for r in engine.requests] == ["a", None, "a", "b"]
    assert [c["id"] for c in http.get("/v1/models").json()["data"]] == ["demo", "a", "b"]
    make(folder / "new")
    assert http.events("/v1/completions", model="new", prompt="x")


def test_requests_that_come_together_wait_for_one_load(open_named, engine) -> None:
    http = open_named()

    async def all_together() -> list[int]:
        body = {"model": "a", "prompt": "x"}
        sent = [http.send("POST", "/v1/completions", json=body) for _ in range(20)]
        return [response.status_code for response in await asyncio.gather(*sent)]

    assert asyncio.run(all_together()) == [200] * 20
    assert loads(engine) == ["a"]


@pytest.mark.parametrize(
    "name",
    [
        *("z", "empty", ".", "..", "../outside", "a/../b", "/etc", "a\\..", "link", "half", "loop"),
        *("x" * 256, "a\x00", "\ud800", "a/", ""),
    ],
)
def test_names_that_lead_out_of_the_folder_are_nobodys(folder: Path, name: str) -> None:
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "half").mkdir()
    (folder / "half" / "adapter_config.json").symlink_to(
        folder.parent / "outside" / "adapter_config.json"
    )
    assert in_folder(folder, name) is None


def test_weights_that_are_a_link_out_are_nobodys(folder: Path) -> None:
    assert in_folder(folder, "a") == folder / "a"
    (folder / "a" / "adapter_model.safetensors").symlink_to("/etc/hostname")
    assert in_folder(folder, "a") is None


def test_a_link_within_the_folder_is_another_name(folder: Path) -> None:
    (folder / "latest").symlink_to("b")
    assert in_folder(folder, "latest") == folder / "b"


def test_an_unknown_name_loads_nothing(open_named, engine) -> None:
    http = open_named()
    assert ask(http, "../outside").status_code == 404
    assert ask(http, "unknown").status_code == 404
    assert not loads(engine) and not http.names._failed


def test_a_broken_adapter_is_refused_without_paths_and_not_tried_again(
    open_named, engine, folder, monkeypatch
) -> None:
    http = open_named()
    for _ in range(3):
        response = ask(http, "broken")
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "model")
        assert str(folder) not in response.text
    assert loads(engine) == ["broken"]
    monkeypatch.setattr(named_adapters, "RETRY_S", 0.0)
    http.names._failed.clear()
    assert ask(http, "broken").status_code == ask(http, "broken").status_code == 400
    assert loads(engine) == ["broken"] * 3
    assert ask(http, "a").status_code == 200


def test_the_one_unused_longest_goes(open_named, engine) -> None:
    http = open_named(max_resolved_loras=2)
    for name in ("a", "b", "a", "c"):
        assert ask(http, name).status_code == 200
    assert sorted(engine.loaded) == ["a", "c"]
    engine.in_use = {"a"}
    assert ask(http, "b").status_code == 200
    assert sorted(engine.loaded) == ["a", "b"]
    engine.in_use = {"a", "b"}
    response = ask(http, "c")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "adapter_not_ready")
    engine.in_use = set()
    assert [ask(http, name).status_code for name in "cab"] == [200] * 3


def test_an_adapter_of_a_running_request_stays(open_named, engine) -> None:
    http = open_named(max_resolved_loras=1)

    async def scene() -> None:
        async with http.names.held("a"):
            with pytest.raises(Exception, match="in use"):
                async with http.names.held("b"):
                    pass
        async with http.names.held("b"):
            assert list(engine.loaded) == ["b"]

    asyncio.run(scene())


def test_adapters_of_others_are_left_alone(open_named, engine, folder) -> None:
    http = open_named(max_resolved_loras=1)
    served = http.state.default
    engine.loaded["a"] = "/elsewhere"
    served.adapters.add("a")
    assert ask(http, "a").status_code == 200
    assert not loads(engine)
    assert ask(http, "b").status_code == 200
    engine.loaded["b"] = "/elsewhere"  # an operator's, in place of the one that was found
    assert ask(http, "c").status_code == 200
    assert sorted(engine.loaded) == ["a", "b", "c"]


def test_a_new_engine_and_an_unloaded_adapter_are_noticed(open_named, engine, folder) -> None:
    http = open_named()
    assert ask(http, "a").status_code == 200
    engine.num_restarts += 1
    engine.loaded.clear()
    assert ask(http, "a").status_code == 200
    engine.loaded.clear()
    http.state.default.adapters.discard("a")  # as the verb does
    assert ask(http, "a").status_code == 200
    assert loads(engine) == ["a"] * 3
    engine.num_restarts += 1
    engine.loaded = {"a": "/elsewhere"}  # an operator's
    assert ask(http, "a").status_code == 200
    assert engine.loaded == {"a": "/elsewhere"}


def test_an_adapter_that_is_gone_is_forgotten(open_named, engine, folder) -> None:
    http = open_named(max_resolved_loras=1)
    assert ask(http, "a").status_code == 200
    engine.num_restarts += 1
    engine.loaded.clear()
    assert [ask(http, name).status_code for name in "ba"] == [200] * 2
    engine.num_restarts += 1
    engine.loaded.clear()
    (folder / "a" / "adapter_config.json").unlink()
    assert ask(http, "a").status_code == 404
    assert "a" not in http.state.default.adapters


@contextmanager
def stuck() -> Iterator[Callable[[str], None]]:
    """Give a resolver that does not return."""
    end = threading.Event()
    try:
        yield lambda name: end.wait(60) and None
    finally:
        end.set()


def test_a_slow_resolver_holds_up_only_those_who_wait_for_it(open_named, engine) -> None:
    with stuck() as resolve:
        http = open_named([resolve], lora_wait_timeout_s=0.05)

        async def scene() -> list[Any]:
            bodies = [{"model": name, "prompt": "x"} for name in ("a", "demo")]
            sent = [http.send("POST", "/v1/completions", json=body) for body in bodies]
            return list(await asyncio.gather(*sent))

        slow, quick = asyncio.run(scene())
    assert (slow.status_code, quick.status_code) == (503, 200)
    assert slow.json()["error"]["code"] == "adapter_not_ready"
    assert slow.headers["retry-after"] == "5"


def test_plugins_are_not_asked_again_at_once(open_named, engine) -> None:
    asked: list[str] = []

    def resolve(name: str) -> None:
        asked.append(name)
        if name == "down":
            raise CheckpointError("/secret cannot be reached")

    http = open_named([resolve])
    for _ in range(2):
        assert ask(http, "org/none").status_code == 404
        response = ask(http, "down")
        assert response.status_code == 503
        assert "secret" not in response.text
    assert asked == ["org/none", "down"]


def test_what_is_remembered_is_bounded(open_named, monkeypatch) -> None:
    monkeypatch.setattr(named_adapters, "MAX_FAILURES", 4)
    http = open_named([lambda name: None])
    for i in range(9):
        ask(http, f"name-{i}")
    assert list(http.names._failed) == [f"name-{i}" for i in range(5, 9)]


def test_too_many_names_at_once_are_refused(open_named, monkeypatch) -> None:
    monkeypatch.setattr(named_adapters, "MAX_WAITING", 1)
    with stuck() as resolve:
        http = open_named([resolve], lora_wait_timeout_s=0.2)

        async def scene() -> list[Any]:
            bodies = [{"model": name, "prompt": "x"} for name in ("a", "b")]
            sent = [http.send("POST", "/v1/completions", json=body) for body in bodies]
            return list(await asyncio.gather(*sent))

        answers = asyncio.run(scene())
    assert [answer.status_code for answer in answers] == [503, 503]
    assert sum("too many" in answer.text for answer in answers) == 1


def test_a_sleeping_model_is_told_of_only_for_a_known_name(open_named, engine) -> None:
    http = open_named()
    engine.is_sleeping = True
    assert ask(http, "a").json()["error"]["code"] == "engine_asleep"
    assert not loads(engine)
    assert ask(http, "unknown").json()["error"]["code"] == "model_not_found"


def test_one_of_several_models_wakes_only_for_a_known_name(open_named, engine) -> None:
    http = open_named()
    woken: list[str] = []

    async def wake(served: Any) -> None:
        woken.append(served.name)

    http.state.fleet = SimpleNamespace(woken=wake)
    assert ask(http, "unknown").status_code == 404
    assert not woken
    assert ask(http, "a").status_code == 200
    assert woken == ["demo"] * 2  # for the load, and for the request


@pytest.mark.parametrize(
    "options",
    [{"max_resolved_loras": 0}, {"lora_wait_timeout_s": 0}, {"lora_dir": "x", "api_processes": 2}],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**options)


def test_what_is_asked_for_must_be_there(plugins, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        find_resolvers(ServerConfig(lora_dir=str(tmp_path / "none")), plugins)
    with pytest.raises(PluginError, match=r"unknown adapter resolver 'hubb'.*choices: hub"):
        find_resolvers(ServerConfig(lora_resolver=["hubb"]), plugins)
    config = ServerConfig(lora_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="enable_lora"):
        make_plans(EngineConfig(), config, has_model=True)
    assert make_plans(EngineConfig(enable_lora=True), config, has_model=True)


def test_a_real_server_finds_them(run_server, tmp_path: Path) -> None:
    for name in ("good", "unfit"):
        path = tmp_path / name
        path.mkdir()
        inputs = 1024 if name == "good" else 1000
        factors = {"A": torch.randn(4, inputs), "B": torch.randn(384, 4)}
        tensors = {f"{PREFIX}.lora_{half}.weight": factor for half, factor in factors.items()}
        save_file(tensors, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 64}))
    server = run_server("demo", "--enable-lora", "--lora-dir", str(tmp_path))
    body = {"prompt": "The list of files", "max_tokens": 16, "temperature": 0}
    texts = [
        server.post("/v1/completions", model=name, **body).json()["choices"][0]["text"]
        for name in ("demo", "good", "good")
    ]
    assert texts[0] != texts[1] == texts[2]
    assert server.post("/v1/completions", model="unfit", **body).status_code == 400
    assert server.post("/v1/completions", model="../good", **body).status_code == 404
    cards = server.get("/v1/models").json()["data"]
    assert [(c["id"], c["parent"]) for c in cards] == [("demo", None), ("good", "demo")]
