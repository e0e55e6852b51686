"""What a response is made from: counted before, listed afterwards."""

import pytest

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def items(http, response_id: str, query: str = "") -> dict:
    answer = http.get(f"{PATH}/{response_id}/input_items{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_counts_are_those_of_the_response(http) -> None:
    first = http.post(PATH, input="Hi").json()
    asked = {
        "input": [{"role": "user", "content": "And now?"}],
        "instructions": "Be brief.",
        "previous_response_id": first["id"],
        "tools": [TOOL],
    }
    counted = http.post(f"{PATH}/input_tokens", **asked).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": http.post(PATH, **asked).json()["usage"]["input_tokens"],
    }
    assert (
        http.post(f"{PATH}/input_tokens", input="Hi").json()["input_tokens"]
        == (first["usage"]["input_tokens"])
    )


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({"input": []}, 400, "input"),
        ({"input": "x", "temperature": -1}, 400, "temperature"),
        ({"input": "x", "model": "another"}, 404, "model"),
        ({"input": "x", "previous_response_id": "resp_0"}, 404, "previous_response_id"),
        ({"input": "x", "chat_template_kwargs": {"tools": "x"}}, 400, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_counted(http, asked, status: int, field: str) -> None:
    answer = http.post(f"{PATH}/input_tokens", **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)


def test_items_of_all_kinds_with_the_turns_before(http) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
    }
    said = [{"role": "user", "content": "Hi"}, thought, call, output]
    first = http.post(PATH, input=said, instructions="Be brief.").json()
    second = http.post(PATH, input="More", previous_response_id=first["id"]).json()
    found = items(http, second["id"], "?order=asc")["data"]
    kinds = [item["type"] for item in found]
    calls = ["reasoning", "function_call", "function_call_output"]
    assert kinds == ["message", *calls, "message", "message"]
    hello, reasoning, called, answered, reply, more = found
    assert hello["content"] == [{"type": "input_text", "text": "Hi"}]
    assert reasoning["content"][0]["text"] == "Hm"
    assert (called["call_id"], called["name"], called["arguments"]) == ("c1", "f", "{}")
    assert (answered["call_id"], answered["output"]) == ("c1", "42")
    assert (reply["role"], reply["content"][0]["text"]) == ("assistant", "Hello there")
    assert (more["role"], more["content"][0]["text"]) == ("user", "More")
    assert len({item["id"] for item in found}) == len(found)
    assert items(http, second["id"])["data"] == found[::-1]


def test_pages(http) -> None:
    said = [{"role": "user", "content": str(i)} for i in range(5)]
    response_id = http.post(PATH, input=said).json()["id"]
    texts, after = [], ""
    for more in (True, True, False):
        page = items(http, response_id, f"?order=asc&limit=2{after}")
        assert page["has_more"] is more
        assert (page["first_id"], page["last_id"]) == (
            page["data"][0]["id"],
            page["data"][-1]["id"],
        )
        texts += [item["content"][0]["text"] for item in page["data"]]
        after = f"&after={page['last_id']}"
    assert texts == list("01234")
    empty = items(http, response_id, f"?order=asc{after}")
    assert empty == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("?limit=0", 400, "limit"),
        ("?limit=101", 400, "limit"),
        ("?limit=x", 400, "limit"),
        ("?order=up", 400, "order"),
        ("?after=msg_none", 400, "after"),
    ],
)
def test_bad_parameters_are_named(http, query: str, status: int, field: str) -> None:
    response_id = http.post(PATH, input="Hi").json()["id"]
    answer = http.get(f"{PATH}/{response_id}/input_items{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)


def test_items_of_a_response_that_is_not_stored(http) -> None:
    answer = http.get(f"{PATH}/resp_0/input_items")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "response_not_found"
