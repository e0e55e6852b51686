"""Fields that nobody knows, where the operator has them ignored."""

import pytest

from hotshoe_server import unknown_fields

PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Hi", "id": 7}, {"role": "user", "content": "there", "id": 8}]


@pytest.fixture
def lenient(open_http, monkeypatch):
    monkeypatch.setattr(unknown_fields, "_named", set())
    return open_http(ignore_unknown_fields=True)


def test_they_are_left_out_at_every_depth_and_named_once(lenient, engine, caplog) -> None:
    body = {"messages": ASK, "typical_p": 1.0, "mirostat": {"tau": [1]}, "top_k": 3, "n": None}
    for _ in range(2):
        assert lenient.post(PATH, **body, stream_options=None).status_code == 200
    assert [request.params.top_k for request in engine.requests] == [3, 3]
    said = [message.rpartition(" ")[2] for message in caplog.messages]
    assert sorted(said) == ["messages[0].id", "mirostat", "typical_p"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": ASK, "nonsense": 1, "top_k": "a"}, "top_k"),
        ({"messages": ASK, "nonsense": 1, "best_of": 2}, "best_of"),
        ({"nonsense": 1}, "messages"),
        ({"messages": [*ASK, {"role": "alien", "nonsense": 1}]}, "messages[2]"),
        ({"messages": [{**ASK[0], f"x{i}": 1} for i in range(100)]}, "messages["),
    ],
)
def test_other_mistakes_are_still_named(lenient, engine, body, param) -> None:
    response = lenient.post(PATH, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
    assert engine.requests == []


def test_a_long_conversation_may_have_one_in_every_message(lenient, engine) -> None:
    turns = [ASK[0], {"role": "assistant", "content": "Yes", "refusal": None, "audio_id": 1}]
    turns *= unknown_fields.MAX_ROUNDS // 2 + 2
    assert lenient.post(PATH, messages=turns).status_code == 200


def test_entries_that_know_a_field_keep_it() -> None:
    value = [
        {"role": "a", "x": 1},
        {"role": "b", "x": 1},
        {"role": "a", "x": ""},
        {"role": "a", "x": 2},
    ]
    unknown_fields._remove(value, (0, "x"))
    assert value == [{"role": "a"}, {"role": "b", "x": 1}, {"role": "a", "x": ""}, {"role": "a"}]


def test_what_is_no_json_is_still_refused(lenient) -> None:
    headers = {"content-type": "application/json"}
    assert lenient("POST", PATH, content=b"{", headers=headers).status_code == 400


def test_by_default_they_are_refused(http) -> None:
    refused = http.post(PATH, messages=[{"role": "user", "content": "Hi"}], typical_p=1.0)
    assert refused.json()["error"]["message"] == "unknown parameter: typical_p"
