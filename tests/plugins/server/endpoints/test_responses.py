"""`/v1/responses` over a scripted engine: items, events, stored conversations."""

import json

import pytest

from hotshoe.types import FinishReason

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
LOGPROBS = "message.output_text.logprobs"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def test_an_answer_is_made_of_items(http) -> None:
    answer = http.post(PATH, input="Hi", metadata={"a": "b"}).json()
    assert (answer["object"], answer["status"]) == ("response", "completed")
    [item] = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"][0]["text"] == "Hello there"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert answer["metadata"] == {"a": "b"}
    assert answer["tool_choice"] == "auto"


def test_a_streams_events_add_up_to_the_answer(http, engine) -> None:
    engine.reply = f"Let me look.\n{CALL}"
    events = http.events(PATH, input="Weather?", tools=[TOOL])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    assert names.count("response.output_item.added") == names.count("response.output_item.done")
    final = events[-1]["response"]
    message, call = final["output"]
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == message["content"][0]["text"]
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"] == '{"city": "Paris"}'
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == final["output"]
    whole = http.post(PATH, input="Weather?", tools=[TOOL]).json()
    assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
    assert whole["output"][1]["arguments"] == call["arguments"]


def test_reasoning_is_an_item(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = "<think>\nHm.\n</think>\n\nYes."
    answer = http.post(PATH, input="Really?").json()
    reasoning, message = answer["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"][0]["text"].strip() == "Hm."
    assert message["content"][0]["text"].strip() == "Yes."
    events = http.events(PATH, input="Really?")
    assert "response.reasoning_text.delta" in [event["type"] for event in events]
    for found in (answer, events[-1]["response"]):
        count = found["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert 0 < count < found["usage"]["output_tokens"]


def test_a_conversation_goes_on(http, engine, tokenizer) -> None:
    first = http.post(PATH, input="One?", instructions="Be kind.").json()
    second = http.post(PATH, input="Two?", previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    text = tokenizer.decode(engine.requests[1].prompt.token_ids)
    assert text.index("One?") < text.index("Hello there") < text.index("Two?")
    assert "Be kind." not in text


def test_calls_and_their_outputs_go_to_the_template(http, engine, tokenizer) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    assert http.post(PATH, input=items, tools=[TOOL]).status_code == 200
    text = tokenizer.decode(engine.requests[0].prompt.token_ids, skip_special_tokens=False)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}' in text
    assert "<tool_response>\nsunny" in text


def test_stored_responses_can_be_read_and_deleted(http) -> None:
    answer = http.post(PATH, input="Hi").json()
    path = f"{PATH}/{answer['id']}"
    assert http.get(path).json() == answer
    assert http("DELETE", path).json()["deleted"] is True
    gone = http.get(path)
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, None)
    assert http("DELETE", path).status_code == 404
    response = http.post(PATH, input="x", previous_response_id=answer["id"])
    assert response.json()["error"]["code"] == "response_not_found"
    assert response.json()["error"]["param"] == "previous_response_id"


def test_what_shall_not_be_stored_is_not(http, open_http) -> None:
    answer = http.post(PATH, input="Hi", store=False).json()
    assert http.get(f"{PATH}/{answer['id']}").status_code == 404
    none = open_http(response_store_bytes=0)
    assert none.get(f"{PATH}/{none.post(PATH, input='Hi').json()['id']}").status_code == 404


def test_tenants_do_not_see_each_others_responses(open_http) -> None:
    http = open_http(api_key=["first-key", "second-key"])
    mine, theirs = ({"authorization": f"Bearer {n}-key"} for n in ("first", "second"))
    answer = http("POST", PATH, json={"input": "Hi"}, headers=mine).json()
    path = f"{PATH}/{answer['id']}"
    assert http("GET", path, headers=theirs).status_code == 404
    assert http("DELETE", path, headers=theirs).status_code == 404
    assert http("GET", path, headers=mine).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_is_incomplete(http, stream: bool) -> None:
    body = {"input": "Hi", "max_output_tokens": 1}
    answer = http.events(PATH, **body)[-1]["response"] if stream else http.post(PATH, **body).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_text_format_becomes_a_grammar(http, engine) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    answer = http.post(PATH, input="Hi", text={"format": form}).json()
    assert json.loads(engine.requests[0].params.grammar.value) == {"type": "object"}
    assert answer["text"]["format"]["schema"] == {"type": "object"}


def test_a_forced_function_becomes_a_grammar(http, engine) -> None:
    engine.reply = CALL
    choice = {"type": "function", "name": "get_weather"}
    answer = http.post(PATH, input="Hi", tools=[TOOL], tool_choice=choice).json()
    assert engine.requests[0].params.grammar.kind == "structural_tag"
    assert answer["tool_choice"] == choice


def test_a_failure_on_the_way_is_an_event(http, engine) -> None:
    engine.fail_after = 1
    assert http.post(PATH, input="Hi").status_code == 500
    last = http.events(PATH, input="Hi")[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    "body",
    [
        {"input": []},
        {"input": "x", "n": 2},
        {"input": "x", "background": True, "store": False},
        {"input": "x", "max_tokens": 3},
        {"input": "x", "conversation": {"id": 3}},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": "x", "tools": [{"type": "web_search"}]},
        {"input": "x", "chat_template_kwargs": {"tools": "x"}},
        {"input": "x", "top_logprobs": 2},
        {"input": "x", "include": [LOGPROBS], "top_logprobs": 999},
        {"input": "x", "include": [LOGPROBS], "top_logprobs": -1},
    ],
)
def test_what_cannot_be_done_is_refused(http, body) -> None:
    response = http.post(PATH, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_a_stored_response_is_not_streamed(http) -> None:
    path = f"/v1/responses/{http.post('/v1/responses', input='x').json()['id']}"
    assert http.get(f"{path}?stream=false").status_code == 200
    for query, name in (
        ("stream=true", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
    ):
        response = http.get(f"{path}?{query}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_log_probabilities_of_the_text_alone(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = f"<think>\nHm.\n</think>\n\nYes, let me look.\n{CALL}"
    body = {"input": "Really?", "tools": [TOOL], "include": [LOGPROBS], "top_logprobs": 2}
    events = http.events(PATH, **body)
    answer = events[-1]["response"]
    assert answer["top_logprobs"] == 2
    [text] = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [entry for e in deltas for entry in e["logprobs"]] == text["logprobs"]
    [done] = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == text["logprobs"]
    spelled = "".join(entry["token"] for entry in text["logprobs"])
    assert text["text"].strip() in spelled and "Hm" not in spelled and "city" not in spelled
    assert all(len(entry["top_logprobs"]) == 2 for entry in text["logprobs"])
    whole = http.post(PATH, **body).json()
    [same] = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
    assert same["logprobs"] == text["logprobs"]
    plain = http.post(PATH, input="Really?", include=[LOGPROBS]).json()["output"]
    assert plain[-1]["content"][0]["logprobs"][0]["top_logprobs"] == []


def test_an_end_that_comes_with_the_text_has_no_log_probability(http, engine, monkeypatch) -> None:
    [token] = engine.tokenizer.encode(" there", False)
    made = engine._output

    def at_once(child: str, token_id: int, step: int, params):
        output = made(child, token_id, step, params)
        if token_id == token:
            output.token_ids, output.logprobs = [token, 8183], output.logprobs * 2
            output.finish_reason = FinishReason.STOP
        return output

    monkeypatch.setattr(engine, "_output", at_once)
    answer = http.post(PATH, input="Really?", include=[LOGPROBS]).json()
    [text] = answer["output"][0]["content"]
    assert "".join(entry["token"] for entry in text["logprobs"]) == text["text"] == "Hello there"


def test_an_answer_of_too_many_log_probabilities_is_refused(http, engine, monkeypatch) -> None:
    monkeypatch.setattr("hotshoe_server.generation.MAX_ANSWER_BYTES", 1000)
    error = http.post(PATH, input="x", include=[LOGPROBS]).json()["error"]
    assert error["param"] == "top_logprobs"
    assert http.post(PATH, input="x", max_output_tokens=400).json()["error"]["param"] == (
        "max_output_tokens"
    )
    assert not engine.requests
