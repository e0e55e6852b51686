"""Models loaded, unloaded, put to sleep and woken, over engines that a test controls."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.plugins.server.conftest import Gate, Http, RunningServer, ScriptedEngine
from tests.plugins.server.test_serving import children, command_of, wait_for

from hotshoe.config import EngineConfig
from hotshoe.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    MemoryLimitError,
    RequestError,
)
from hotshoe_server.admission import AdminDoor
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import Fleet, in_thread, make_served, make_state
from hotshoe_server.plans import Plan, make_plans

NAMES = ("one", "two", "three")
BASE = EngineConfig()


class Served(Http):
    """A server of `engines` by name, loaded as `plans` say."""

    engines: dict[str, ScriptedEngine]
    plans: dict[str, Plan]
    fleet: Fleet

    async def ask(self, model: str, **body: Any) -> httpx.Response:
        return await self.send(
            "POST", "/v1/completions", json={"model": model, "prompt": "x", **body}
        )

    async def verb(self, path: str, **body: Any) -> httpx.Response:
        return await self.send("POST", path, json=body)

    def states(self) -> dict[str, str]:
        return {card["id"]: card["state"] for card in self.get("/v1/models").json()["data"]}


@pytest.fixture
def open_fleet(tokenizer, plugins):
    """Build a server of the models in NAMES, all awake; options as for ServerConfig."""

    def build(names: tuple[str, ...] = NAMES, base: EngineConfig = BASE, **options: Any) -> Served:
        engines: dict[str, ScriptedEngine] = {}
        loaded: dict[str, Plan] = {}
        given = {"models": dict.fromkeys(names, "demo"), "model_wait_timeout_s": 30.0}
        config = ServerConfig(**{**given, "shutdown_timeout_s": 30.0, **options})
        plans = make_plans(EngineConfig(), config, has_model=False)

        def load(plan: Any) -> ScriptedEngine:
            loaded[plan.names[0]] = plan
            engine = engines[plan.names[0]] = ScriptedEngine(tokenizer)
            engine.reply = plan.names[0]
            engine.config = replace(engine.config, enable_lora=True)
            if plan.engine.seed == 1:
                raise MemoryLimitError("the weights need more")
            if plan.engine.seed == 2:
                raise EngineDeadError("it ended while it started")
            return engine

        fleet = Fleet(plans, base, load, lambda c, e: make_served(c, e, plugins), lambda line: None)
        for plan in plans[1:][::-1]:
            fleet.add(plan, fleet.build(plan))
        state = make_state(plans[0].config, fleet.build(plans[0]), plugins)
        fleet.attach(state)
        http = Served(AdminDoor(create_app(state)))
        http.state, http.engines, http.fleet, http.plans = state, engines, fleet, loaded
        return http

    return build


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_order_and_states(open_fleet) -> None:
    http = open_fleet()
    assert http.states() == dict.fromkeys(NAMES, "ready")
    http.engines["two"].is_sleeping = True
    http.engines["three"].error = EngineDeadError("killed")
    http.engines["one"].is_paused = True
    assert http.states() == {"one": "paused", "two": "asleep", "three": "down"}
    http.engines["three"].is_over = True
    assert http.states()["three"] == "ended"


def test_a_request_wakes_its_model_and_the_one_idle_longest_sleeps(open_fleet) -> None:
    http = open_fleet(max_resident_models=2)

    async def run() -> None:
        await http.fleet.sleep(http.state.models["three"])
        for name in ("two", "one", "three"):
            answer = await http.ask(name)
            assert answer.json()["choices"][0]["text"] == name

    asyncio.run(run())
    assert http.states() == {"one": "ready", "two": "asleep", "three": "ready"}
    assert http.engines["two"].calls == [("sleep", 1, "keep")]
    assert http.get("/health").status_code == 200
    assert http.get("/health?model=two").status_code == 200  # which wakes when it is asked


def test_a_name_that_nobody_knows_wakes_no_model(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1)
    http.engines["one"].is_sleeping = True
    http.engines["one"].config = replace(http.engines["one"].config, enable_lora=True)
    answer = asyncio.run(http.ask("nope"))
    assert answer.json()["error"]["code"] == "model_not_found"
    assert http.states() == {"one": "asleep", "two": "ready"}
    http.state.models["one"].adapters.add("mine")
    assert asyncio.run(http.ask("mine")).status_code == 200
    assert http.states()["two"] == "asleep"


def test_a_busy_model_is_let_be_and_who_waits_gets_its_turn(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1)
    http.engines["two"].is_sleeping = True

    async def run() -> None:
        gate = http.engines["one"].gate = Gate()
        first = asyncio.create_task(http.ask("one"))
        await until(lambda: bool(http.engines["one"].requests))
        others = [asyncio.create_task(http.ask("two")) for _ in range(3)]
        await until(lambda: http.state.models["two"].num_open == 3)
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in others)
        assert not http.engines["one"].calls
        gate.allow(1000)
        assert (await first).status_code == 200
        assert [(await task).status_code for task in others] == [200] * 3
        assert http.engines["one"].calls == [("sleep", 1, "keep")]
        assert http.engines["two"].calls == [("wake_up", None)]  # once for all of them

    asyncio.run(run())


@pytest.mark.parametrize(
    ("cause", "code", "message"),
    [
        (MemoryLimitError("1 GiB is missing"), "out_of_memory", "1 GiB is missing"),
        (
            CheckpointError("/srv/one is no directory"),
            "model_asleep",
            "two cannot be woken now; the server's log says why",
        ),
    ],
)
def test_a_wake_that_failed_is_tried_again(
    open_fleet, monkeypatch, cause: Exception, code: str, message: str
) -> None:
    http = open_fleet(("one", "two"), max_resident_models=2)
    two = http.engines["two"]
    two.is_sleeping = True

    async def fail(tags: Any = None) -> None:
        raise cause

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(two, "wake_up", fail)
            refused = await http.ask("two")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            error = refused.json()["error"]
            assert (error["code"], error["message"]) == (code, message)
        assert (await http.ask("two")).status_code == 200

    asyncio.run(run())


def test_a_host_without_room_lets_a_model_sleep_more_deeply(open_fleet, monkeypatch) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1)
    http.engines["two"].is_sleeping = True
    sleep = http.engines["one"].sleep

    async def no_copy(level: int = 1, mode: str = "keep") -> None:
        if level == 1:
            raise MemoryLimitError("the host grants no 16 GiB")
        await sleep(level, mode)

    monkeypatch.setattr(http.engines["one"], "sleep", no_copy)
    assert asyncio.run(http.ask("two")).status_code == 200
    assert http.engines["one"].calls == [("sleep", 2, "keep")]


def test_waiting_is_bounded(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1, model_wait_timeout_s=0.1)
    http.engines["two"].is_sleeping = True

    async def run() -> None:
        gate = http.engines["one"].gate = Gate()
        first = asyncio.create_task(http.ask("one"))
        await until(lambda: bool(http.engines["one"].requests))
        refused = await http.ask("two")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "model_asleep"
        gate.allow(1000)
        assert (await first).status_code == 200

    asyncio.run(run())
    assert http.state.models["two"].num_open == 0


def test_without_a_limit_an_operator_wakes_models(open_fleet) -> None:
    http = open_fleet(("one", "two"))

    async def run() -> None:
        assert (await http.verb("/sleep", model="two", level=2)).status_code == 200
        waiting = asyncio.create_task(http.ask("two"))
        await until(lambda: http.state.models["two"].num_open == 1)
        assert (await http.ask("one")).status_code == 200
        assert not waiting.done()
        assert (await http.verb("/wake_up", model="two")).status_code == 200
        assert (await waiting).json()["choices"][0]["text"] == "two"

    asyncio.run(run())
    assert http.engines["two"].calls == [("sleep", 2, "keep"), ("wake_up", None)]


def test_the_engine_of_a_lone_model_keeps_requests_itself(open_fleet) -> None:
    http = open_fleet(("one",))
    http.engines["one"].is_sleeping = True
    assert (
        http.post("/v1/completions", prompt="x").status_code == 200
    )  # the scripted one never waits


def test_requests_that_wait_end_with_the_server_or_the_model(open_fleet) -> None:
    http = open_fleet()
    http.engines["two"].is_sleeping = http.engines["three"].is_sleeping = True

    async def run() -> None:
        two, three = (asyncio.create_task(http.ask(name)) for name in ("two", "three"))
        await until(lambda: all(http.state.models[n].num_open for n in ("two", "three")))
        assert (await http.verb("/v1/unload_model", model="two")).status_code == 200
        assert (await two).json()["error"]["code"] == "model_not_found"
        http.state.draining = True
        assert (await three).json()["error"]["code"] == "shutting_down"

    asyncio.run(run())


def test_a_dead_engine_fails_its_own_requests_alone(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1)
    http.engines["two"].is_sleeping = True
    http.engines["two"].error = EngineDeadError("killed")
    response = asyncio.run(http.ask("two"))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert asyncio.run(http.ask("one")).status_code == 200
    paths = ("/live", "/ready", "/health", "/load", "/health?model=one", "/server_info?model=two")
    assert [http.get(path).status_code for path in paths] == [200] * 6
    assert http.get("/health?model=two").status_code == 503
    http.engines["one"].error = EngineDeadError("killed")
    assert [http.get(path).status_code for path in paths[:4]] == [200, 503, 503, 200]
    http.engines["one"].is_over = http.engines["two"].is_over = True
    assert http.get("/live").status_code == 503


def test_a_model_that_cannot_move_its_weights_drops_them(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=1)
    http.engines["two"].is_sleeping = True
    engine, sleep = http.engines["one"], http.engines["one"].sleep

    async def picky(level: int = 1, mode: str = "keep") -> None:
        if level == 1:
            raise RequestError("sleep level 1 is not offered", "level")
        await sleep(level, mode)

    engine.sleep = picky
    assert asyncio.run(http.ask("two")).status_code == 200
    assert engine.calls == [("sleep", 2, "keep")]


def test_models_are_loaded_and_unloaded(open_fleet) -> None:
    http = open_fleet(("one",))

    async def run() -> None:
        body = {"name": "more", "model": "demo", "options": {"served_model_name": ["alias"]}}
        assert (await http.verb("/v1/load_model", **body)).json() == {"done": True}
        assert (await http.ask("alias")).json()["choices"][0]["text"] == "more"
        taken = await http.verb("/v1/load_model", name="alias", model="demo")
        assert (taken.status_code, taken.json()["error"]["param"]) == (400, "name")
        assert (await http.verb("/v1/unload_model", model="alias")).status_code == 200
        assert (await http.ask("more")).status_code == 404
        only = await http.verb("/v1/unload_model", model="one")
        assert only.status_code == 400 and "only model" in only.text

    asyncio.run(run())
    assert http.engines["more"].calls == [("close",)]


def test_an_adapter_has_a_name_of_its_own(open_fleet) -> None:
    http = open_fleet(("one", "two"))

    def load(model: str, name: str, path: str = "/a") -> httpx.Response:
        return http.post("/v1/load_lora_adapter", model=model, lora_name=name, lora_path=path)

    def refused(answer: httpx.Response, param: str, said: str) -> bool:
        error = answer.json()["error"]
        return (answer.status_code, error["param"]) == (400, param) and said in error["message"]

    assert [load("one", "mine").status_code for _ in range(2)] == [200, 200]
    assert refused(load("two", "mine"), "lora_name", "model one has an adapter of this name")
    assert refused(load("two", "other", "/none"), "lora_path", "missing")
    assert load("one", "other").status_code == 200  # a failure takes no name
    assert refused(load("one", "mine", "/none"), "lora_path", "missing")  # and gives none back
    assert refused(load("two", "mine"), "lora_name", "model one has")
    http.engines["one"].loaded.clear()  # by a new start
    body = {"model": "one", "lora_name": "mine"}
    assert http.post("/v1/unload_lora_adapter", **body).status_code == 400
    assert load("two", "yours").status_code == 200
    assert http.post("/v1/unload_lora_adapter", lora_name="yours").status_code == 200
    assert "yours" not in http.engines["two"].loaded
    assert refused(http.post("/v1/unload_lora_adapter", lora_name="yours"), "model", "several")
    assert load("two", "mine").status_code == 200
    more = {"model": "demo", "options": {"lora_modules": {"mine": "/a"}}}
    taken = http.post("/v1/load_model", name="more", **more)
    assert refused(taken, "options", "an adapter mine of two")
    assert refused(http.post("/v1/load_model", name="mine", model="demo"), "name", "mine of two")
    assert refused(http.post("/v1/load_model", name="mine", **more), "options", "itself is named")


def test_two_models_cannot_take_one_name_at_once(open_fleet) -> None:
    http = open_fleet(("one", "two"))
    own = {"lora_name": "mine", "lora_path": "/a"}

    async def run() -> list[int]:
        both = (http.verb("/v1/load_lora_adapter", model=m, **own) for m in ("one", "two"))
        return sorted(answer.status_code for answer in await asyncio.gather(*both))

    assert asyncio.run(run()) == [200, 400]


def test_a_model_that_comes_later_takes_no_adapters_of_the_first(open_fleet) -> None:
    base = EngineConfig(enable_lora=True, lora_modules={"mine": "/a"})
    http = open_fleet(("one",), base=base)
    http.state.models["one"].adapters.add("mine")
    assert http.post("/v1/load_model", name="more", model="demo").status_code == 200
    engine = http.plans["more"].engine
    assert (engine.enable_lora, engine.lora_modules) == (True, {})


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_unloading_what_is_in_use(open_fleet, mode: str) -> None:
    http = open_fleet(("one", "two"))

    async def run() -> None:
        gate = http.engines["two"].gate = Gate()
        running = asyncio.create_task(http.ask("two"))
        await until(lambda: bool(http.engines["two"].requests))
        going = asyncio.create_task(http.verb("/v1/unload_model", model="two", mode=mode))
        await until(lambda: "two" not in http.state.models)
        assert (await http.ask("two")).status_code == 404
        if mode == "abort":
            await until(lambda: bool(http.engines["two"].calls))
        assert ("close",) not in http.engines["two"].calls
        gate.allow(1000)
        assert (await running).status_code == 200
        assert (await going).status_code == 200

    asyncio.run(run())
    [request] = http.engines["two"].requests
    aborted = [("abort", [request.id])] if mode == "abort" else []
    assert http.engines["two"].calls == [*aborted, ("close",)]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ({"seed": 1}, 400, "more does not fit: the weights need more"),
        ({"seed": 2}, 503, "did not start"),
        ({"max_num_seq": 2}, 400, "did you mean max_num_seqs"),
        ({"port": 2}, 400, "unknown option port"),
    ],
)
def test_a_model_that_cannot_be_loaded_changes_nothing(open_fleet, options, status, said) -> None:
    http = open_fleet(("one", "two"))
    http.engines["one"].info = replace(http.engines["one"].info, memory={"weights": 3 << 20})
    http.state.models["one"].client.info = http.engines["one"].info
    body = {"name": "more", "model": "demo", "options": options}
    response = http.post("/v1/load_model", **body)
    assert response.status_code == status and said in response.json()["error"]["message"]
    if options == {"seed": 1}:
        assert "one (ready): weights 3 MiB" in response.json()["error"]["message"]
    assert http.states() == {"one": "ready", "two": "ready"}


def test_a_change_that_fails_when_nobody_waits_any_more_writes_no_traceback(open_fleet) -> None:
    fleet, seen = open_fleet(("one", "two")).fleet, list[dict[str, Any]]()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        gate = asyncio.Event()

        async def change() -> None:
            await gate.wait()
            raise EngineDeadError("it ended while it started")

        asking = asyncio.create_task(fleet._go_on(change()))
        await until(lambda: bool(fleet._changes))
        asking.cancel()
        gate.set()
        await until(lambda: not fleet._changes)
        gc.collect()

    asyncio.run(run())
    assert not seen


def test_loading_makes_room_or_says_that_there_is_none(open_fleet) -> None:
    http = open_fleet(("one", "two"), max_resident_models=2, model_wait_timeout_s=0.1)

    async def run() -> None:
        gates = [engine.__dict__.setdefault("gate", None) for engine in http.engines.values()]
        assert gates == [None, None]
        for engine in http.engines.values():
            engine.gate = Gate()
        running = [asyncio.create_task(http.ask(name)) for name in ("one", "two")]
        await until(lambda: all(engine.requests for engine in http.engines.values()))
        refused = await http.verb("/v1/load_model", name="more", model="demo")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "models_busy")
        for engine in http.engines.values():
            engine.gate.allow(1000)
        await asyncio.gather(*running)
        assert (await http.verb("/v1/load_model", name="more", model="demo")).status_code == 200

    asyncio.run(run())
    assert sorted(http.states().values()) == ["asleep", "ready", "ready"]


def test_verbs_name_their_model_where_there_are_several(open_fleet) -> None:
    http = open_fleet(("one", "two"))
    for path in ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"):
        refused = http.post(path)
        assert refused.json()["error"]["code"] == "missing_required_parameter", path
        assert http.post(path, model="two").status_code == 200
        assert http.post(path, model="three").status_code == 404
    assert not http.engines["one"].calls
    assert http.get("/is_sleeping?model=two").json() == {"is_sleeping": False}
    assert http.get("/is_sleeping").status_code == 400
    assert http.get("/is_sleeping?level=2").status_code == 400
    assert http.post("/abort_requests").status_code == 200
    assert http.engines["one"].calls == [("abort_everywhere", None)]


@pytest.mark.parametrize(
    "options",
    [{"api_processes": 2}, {"engine_process": False}, {"models": {}, "max_resident_models": 0}],
)
def test_what_several_models_cannot_have(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**{"models": {"a": "demo"}, **options})


def test_a_server_without_a_fleet_says_so(http) -> None:
    http.app = AdminDoor(http.app)
    for path, body in (("/v1/load_model", {"name": "a"}), ("/v1/unload_model", {})):
        response = http.post(path, model="demo", **body)
        assert (response.status_code, response.json()["error"]["code"]) == (
            400,
            "unsupported_parameter",
        )


def test_in_thread() -> None:
    assert asyncio.run(in_thread(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 // 0))


def ask(server: RunningServer, model: str) -> httpx.Response:
    return server.post("/v1/completions", model=model, prompt=[1, 2], max_tokens=2)


def test_two_models_from_a_file(run_server, tmp_path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        'platform: "null"\nmax_resident_models: 1\n'
        "models: {one: demo, two: {model: demo, max_num_seqs: 3}}\n"
    )
    server = run_server("--config", str(file))
    assert [ask(server, name).status_code for name in ("one", "two", "one")] == [200] * 3
    assert ask(server, "three").status_code == 404
    cards = server.get("/v1/models").json()["data"]
    assert [(card["id"], card["state"]) for card in cards] == [("one", "ready"), ("two", "asleep")]
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_killed_engine_leaves_the_other_model_serving(run_server) -> None:
    server = run_server("demo", "--model", "two=demo", "--platform", "null")

    def states() -> dict[str, str]:
        return {card["id"]: card["state"] for card in server.get("/v1/models").json()["data"]}

    is_engine = "hotshoe.engine.transport.child"
    victim = next(p for p in children(server.process.pid) if is_engine in command_of(p))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: "down" in states().values())
    [alive] = [name for name, state in states().items() if state == "ready"]
    assert ask(server, alive).status_code == 200
    assert [server.get(path).status_code for path in ("/live", "/ready", "/health")] == [200] * 3
    wait_for(lambda: set(states().values()) == {"ready"})
    assert [ask(server, name).status_code for name in ("demo", "two")] == [200] * 2
    assert server.stop() == 0


@pytest.mark.parametrize(
    "error",
    [CheckpointError("no adapter at /x"), RequestError("no", "field"), EngineDeadError("it ended")],
)
def test_an_error_names_its_model_where_there_are_several(error: Exception) -> None:
    said = str(error)

    def build(plan: Plan) -> Any:
        raise error

    def fleet(*names: str) -> Fleet:
        config = ServerConfig(models=dict.fromkeys(names, "demo"))
        return Fleet(make_plans(BASE, config, False), BASE, build, pytest.fail, print)

    for several, wanted in ((fleet("one"), said), (fleet("one", "two"), f"one: {said}")):
        with pytest.raises(type(error)) as raised:
            several.build(several.plans[0])
        assert (raised.value, str(raised.value)) == (error, wanted)
    assert getattr(error, "field", "field") == "field"


def test_the_first_model_to_load_that_does_not_fit_is_named_with_the_plan(open_fleet) -> None:
    models = {"one": "demo", "two": {"model": "demo", "seed": 1}}
    models["three"] = {"model": "demo", "kv_cache_memory_bytes": 3 << 30}
    with pytest.raises(MemoryLimitError) as raised:
        open_fleet(models=models)
    assert str(raised.value).splitlines() == [
        "two does not fit: the weights need more",
        "  three (ready): unknown",
        "  two (not loaded yet): memory_share 0.5 of the memory that is free then",
        "  one (not loaded yet): memory_share 1 of the memory that is free then",
    ]
    models["three"]["seed"] = 1
    with pytest.raises(MemoryLimitError) as raised:
        open_fleet(models=models)
    first, plan = str(raised.value).splitlines()[:2]
    assert first == "three does not fit: the weights need more"
    assert plan == "  three (not loaded yet): kv_cache_memory_bytes 3,072 MiB"
