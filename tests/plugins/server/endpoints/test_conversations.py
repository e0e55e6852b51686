"""`/v1/conversations` over a scripted engine: items, pages, responses that go on with them."""

import pytest

PATH = "/v1/conversations"
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_it_is_begun_changed_and_forgotten(http) -> None:
    made = http.post(PATH, metadata={"a": "b"}).json()
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    path = f"{PATH}/{made['id']}"
    assert http.get(path).json() == made
    assert http.post(path, metadata={"c": "d"}).json() == made | {"metadata": {"c": "d"}}
    assert http.get(path).json()["metadata"] == {"c": "d"}
    assert http("DELETE", path).json() == {
        "object": "conversation.deleted",
        "id": made["id"],
        "deleted": True,
    }
    for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/items")):
        assert http(method, where).status_code == 404


def test_items_come_in_pages_and_go(http) -> None:
    made = http.post(PATH, items=[user("One"), CALL]).json()
    path = f"{PATH}/{made['id']}/items"
    added = http.post(path, items=[user("Three")]).json()["data"]
    assert added[0]["content"] == [{"type": "input_text", "text": "Three"}]
    listed = http.get(f"{path}?order=asc").json()
    assert [item["type"] for item in listed["data"]] == ["message", "function_call", "message"]
    assert listed["data"][-1] == added[0] and listed["has_more"] is False
    first = http.get(f"{path}?limit=2").json()
    assert first["data"] == listed["data"][:0:-1] and first["has_more"] is True
    rest = http.get(f"{path}?after={first['last_id']}").json()
    assert rest["data"] == listed["data"][:1]
    one = f"{path}/{listed['data'][1]['id']}"
    assert http.get(one).json()["call_id"] == "c1"
    assert http("DELETE", one).json()["id"] == made["id"]
    assert http.get(one).status_code == 404 and http("DELETE", one).status_code == 404
    assert len(http.get(path).json()["data"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_with_it_and_is_added(http, engine, tokenizer, stream: bool) -> None:
    made = http.post(PATH, items=[user("One?")]).json()
    for place, named in enumerate((made["id"], {"id": made["id"]})):
        body = {"input": "Two?", "conversation": named, "store": False}
        path = "/v1/responses"
        told = (
            http.events(path, **body)[-1]["response"] if stream else http.post(path, **body).json()
        )
        assert told["conversation"] == {"id": made["id"]}
        text = tokenizer.decode(engine.requests[place].prompt.token_ids)
        assert (text.count("One?"), text.count("Two?")) == (1, 1 + place)
        assert text.count("Hello there") == place
    items = http.get(f"{PATH}/{made['id']}/items?order=asc").json()["data"]
    assert [item["role"] for item in items] == ["user", *("user", "assistant") * 2]
    assert items[-1] == told["output"][0]


def test_reasoning_and_calls_are_kept(open_http, engine, tokenizer) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = (
        "<think>\nHm.\n</think>\n\nLook.\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    )
    named = http.post(PATH).json()["id"]
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    first = http.post("/v1/responses", input="x", conversation=named, tools=[tool]).json()
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    output = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": "sunny",
    }
    assert http.post("/v1/responses", input=[output], conversation=named).status_code == 200
    text = tokenizer.decode(engine.requests[1].prompt.token_ids, skip_special_tokens=False)
    assert text.index("Look.") < text.index('{"a": 1}') < text.index("sunny")


def test_mistakes_are_named(http, open_http) -> None:
    named = http.post(PATH).json()["id"]
    earlier = http.post("/v1/responses", input="x").json()["id"]
    both = {"input": "x", "conversation": named, "previous_response_id": earlier}
    response = http.post("/v1/responses", **both)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "conversation")
    response = http.post("/v1/responses", input="x", conversation="conv_none")
    assert (response.status_code, response.json()["error"]["param"]) == (404, "conversation")
    assert http.get(f"/v1/responses/{named}").status_code == 404
    assert http("DELETE", f"/v1/responses/{named}").status_code == 404
    assert http.get(f"{PATH}/{earlier}").status_code == 404
    for body in ({"items": []}, {"items": [user("x")] * 21}, {"items": [{"type": "x"}]}, {}):
        assert http.post(f"{PATH}/{named}/items", **body).status_code == 400
    assert http.get(f"{PATH}/{named}/items?limit=0").json()["error"]["param"] == "limit"
    none = open_http(response_store_bytes=0).post(PATH)
    assert (none.status_code, none.json()["error"]["code"]) == (400, "invalid_value")


def test_it_has_an_end(http, monkeypatch) -> None:
    monkeypatch.setattr("hotshoe_server.conversations.MAX_KEPT", 3)
    named = http.post(PATH, items=[user("x")] * 2).json()["id"]
    error = http.post(f"{PATH}/{named}/items", items=[user("x")] * 2).json()["error"]
    assert error["param"] == "items"
    assert http.post(f"{PATH}/{named}/items", items=[user("x")]).status_code == 200


def test_tenants_do_not_see_each_others(open_http) -> None:
    http = open_http(api_key=["first-key", "second-key"])
    mine, theirs = ({"authorization": f"Bearer {n}-key"} for n in ("first", "second"))
    named = http("POST", PATH, json={}, headers=mine).json()["id"]
    for method, where in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        assert http(method, f"{PATH}/{named}{where}", headers=theirs).status_code == 404
    body = {"input": "x", "conversation": named}
    assert http("POST", "/v1/responses", json=body, headers=theirs).status_code == 404
    assert http("GET", f"{PATH}/{named}", headers=mine).status_code == 200
