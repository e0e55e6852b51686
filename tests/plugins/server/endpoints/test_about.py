"""What the server says of itself."""

from dataclasses import replace

import pytest

from hotshoe import __version__
from hotshoe.errors import EngineDeadError


def test_models(http) -> None:
    answer = http.get("/v1/models").json()
    [card] = answer["data"]
    assert (answer["object"], card["id"], card["object"]) == ("list", "demo", "model")
    assert card["max_model_len"] == 512
    assert card["parent"] is None
    [permission] = card["permission"]
    assert permission["object"] == "model_permission" and permission["allow_sampling"]
    assert http.get("/v1/models/demo").json() == card
    response = http.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_several_names_for_the_model(open_http) -> None:
    http = open_http(served_model_name=["a", "b/c"])
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["a", "b/c"]
    assert http.get("/v1/models/b/c").json()["id"] == "b/c"
    assert http.post("/v1/completions", prompt="x", model="b/c").json()["model"] == "b/c"
    assert http.post("/v1/completions", prompt="x").json()["model"] == "a"
    assert http.post("/v1/completions", prompt="x", model="demo").status_code == 404


def test_a_directory_is_served_under_its_path_too(open_http, engine, tmp_path) -> None:
    engine.config = replace(engine.config, model=str(tmp_path))
    http = open_http()
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == [tmp_path.name]
    answer = http.post("/v1/completions", prompt="x", model=str(tmp_path)).json()
    assert answer["model"] == str(tmp_path)
    assert http.post("/v1/completions", prompt="x", model="/elsewhere").status_code == 404
    named = open_http(served_model_name=["a"])
    assert named.post("/v1/completions", prompt="x", model=str(tmp_path)).status_code == 404


def test_ping_is_health(http, engine) -> None:
    assert [http(method, "/ping").status_code for method in ("GET", "POST")] == [200, 200]
    engine.error = EngineDeadError("stuck")
    assert http.get("/ping").status_code == 503


def test_a_server_whose_engine_has_ended_for_good_is_not_live(http, engine) -> None:
    engine.error = EngineDeadError("killed")
    assert http.get("/live").status_code == 200  # another engine may take over
    engine.is_over = True
    response = http.get("/live")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert "restart the server" in response.json()["error"]["message"]


def test_health_turns_red_with_the_engine(http, engine) -> None:
    paths = ("/health", "/ready", "/live")
    assert [http.get(path).status_code for path in paths] == [200, 200, 200]
    engine.error = EngineDeadError("stuck in /secret/path at 0x7f00")
    assert [http.get(path).status_code for path in paths] == [503, 503, 200]
    response = http.post("/v1/completions", prompt="x")
    assert response.status_code == 503
    assert "secret" not in response.text and "0x7f" not in response.text


@pytest.mark.parametrize(
    ("paused", "asleep", "code"),
    [(True, False, "engine_paused"), (False, True, "engine_asleep"), (True, True, "engine_asleep")],
)
def test_an_engine_that_rests_is_not_healthy(http, engine, paused, asleep, code) -> None:
    engine.is_paused, engine.is_sleeping = paused, asleep
    response = http.get("/health")
    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert [http.get(path).status_code for path in ("/ready", "/live")] == [200, 200]
    engine.is_paused = engine.is_sleeping = False
    assert http.get("/health").status_code == 200


def test_readiness_turns_red_while_draining(http) -> None:
    http.state.draining = True
    response = http.get("/ready")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert http.get("/live").status_code == 200
    assert http.post("/v1/completions", prompt="x").json()["error"]["code"] == "shutting_down"


def test_load(http) -> None:
    assert http.get("/load").json() == {
        "server_load": 3,
        "num_running": 1,
        "num_waiting": 2,
        "num_waiting_tokens": 0,
        "kv_cache_usage": 0.25,
    }


def test_version(http) -> None:
    assert http.get("/version").json() == {"version": __version__}


def test_server_info_names_no_path(http) -> None:
    info = http.get("/server_info").json()
    assert info["facts"]["features"] == ["a", "b"]
    assert info["tool_call_parser"] == "hermes"
    assert "/model" not in str(info)
