"""Which model answers, and what a server knows of all of them."""

from dataclasses import replace

import pytest
from tests.plugins.server.conftest import Http, ScriptedEngine

from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.endpoints.admin import adapted
from hotshoe_server.errors import ApiError
from hotshoe_server.fleet import make_served, make_state
from hotshoe_server.state import Shared


@pytest.fixture
def second(tokenizer) -> ScriptedEngine:
    """The engine of a second model."""
    engine = ScriptedEngine(tokenizer)
    engine.reply = "Second"
    engine.info = replace(engine.info, config=replace(engine.config, max_model_len=64))
    engine.config = engine.info.config
    return engine


@pytest.fixture
def two(engine, second, plugins):
    """A server of two models, `first` and `second`, which is `other`, too."""
    state = make_state(ServerConfig(served_model_name=["first"]), engine, plugins)
    config = ServerConfig(served_model_name=["second", "other"])
    state.models["second"] = make_served(config, second, plugins)
    http = Http(create_app(state))
    http.state = state
    return http


def complete(http, **body: object):
    return http.post("/v1/completions", prompt="x", **body)


def test_requests_go_to_the_model_that_they_name(two, engine, second) -> None:
    texts = [
        (answer["model"], answer["choices"][0]["text"])
        for name in ("first", "second", "other", None)
        for answer in [complete(two, **({"model": name} if name else {})).json()]
    ]
    assert texts == [
        ("first", "Hello there"),
        ("second", "Second"),
        ("other", "Second"),
        ("first", "Hello there"),
    ]
    assert (len(engine.requests), len(second.requests)) == (2, 2)


def test_an_unknown_name_is_answered_with_those_that_are_known(two) -> None:
    response = complete(two, model="third")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "first, second, other" in error["message"]


def test_all_models_are_listed_with_their_own_length(two) -> None:
    cards = two.get("/v1/models").json()["data"]
    assert [(c["id"], c["root"], c["max_model_len"]) for c in cards] == [
        ("first", "first", 512),
        ("second", "second", 64),
        ("other", "second", 64),
    ]
    assert two.get("/v1/models/other").json()["root"] == "second"


def test_limits_are_the_models_own(two) -> None:
    long = list(range(1, 101))
    assert two.post("/v1/completions", prompt=long, model="first").status_code == 200
    response = two.post("/v1/completions", prompt=long, model="second")
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert two.state.max_model_len == 512


def test_an_adapter_leads_to_its_model(two, engine, second) -> None:
    two.state.models["second"].adapters.add("mine")
    assert complete(two, model="mine").status_code == 200
    assert [request.params.adapter for request in second.requests] == ["mine"]
    assert not engine.requests


def test_adapters_are_loaded_into_the_only_model_that_takes_them(two, engine, second) -> None:
    state = two.state
    for takers, found in (((second,), "second"), ((engine, second), None), ((), None)):
        for one in (engine, second):
            one.config = replace(one.config, enable_lora=one in takers)
        if found is None:
            with pytest.raises(ApiError, match="several models here; name one of first, second"):
                adapted(state, None)
        else:
            assert adapted(state, None).name == found
        if engine in takers:
            assert adapted(state, "first").name == "first"
        else:
            with pytest.raises(ApiError, match="model first takes no adapters; start it with"):
                adapted(state, "first")


def test_no_engine_is_asked_for_an_adapter_that_nobody_knows(two, engine, second) -> None:
    second.config = replace(second.config, enable_lora=True)
    two.state.models["first"].adapters.add("mine")
    response = complete(two, model="nope")
    assert response.status_code == 404
    assert "only first, second, other, mine" in response.json()["error"]["message"]
    assert not engine.requests and not second.requests
    two.state.shared = Shared(0, 0, None)  # another process may have loaded it
    engine.config = replace(engine.config, enable_lora=True)
    assert complete(two, model="nope").status_code == 200
    assert [request.params.adapter for request in engine.requests] == ["nope"]


@pytest.mark.parametrize("error", [EngineDeadError("killed"), QueueFullError("full", 3.0)])
def test_a_model_that_cannot_answer_leaves_the_others_alone(two, engine, second, error) -> None:
    second.error = error
    assert complete(two, model="first").status_code == 200
    assert complete(two, model="second").status_code == (
        503 if isinstance(error, EngineDeadError) else 429
    )
    engine.error = error  # now nobody can, which is known before a body is read
    assert complete(two, model="third").status_code in (503, 429)


def test_fingerprints_differ(two) -> None:
    first, second = two.state.models.values()
    assert first.fingerprint != second.fingerprint
    assert two.state.client is first.client
