"""Ollama's form over a scripted engine: answers, lines, options, tools, models."""

import json

import pytest

from hotshoe import __version__

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def http(open_http):
    return open_http(ollama=True, reasoning_parser="qwen3")


def lines(http, path: str, **body) -> list[dict]:
    response = http.post(path, model="demo", **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def test_it_is_there_when_asked_for(open_http) -> None:
    assert open_http().post("/api/chat", model="demo", messages=HI).status_code == 404
    assert "/api/chat" not in open_http().get("/openapi.json").text
    assert "/api/chat" in open_http(ollama=True).get("/openapi.json").text


def test_chat_streams_lines(http, engine) -> None:
    engine.reply = "<think>\nHm.\n</think>\n\nYes, indeed."
    found = lines(http, "/api/chat", messages=HI)
    assert all(line["model"] == "demo" and line["created_at"].endswith("Z") for line in found)
    *told, last = found
    assert not any(line["done"] for line in told)
    text = "".join(line["message"]["content"] for line in told)
    thought = "".join(line["message"].get("thinking", "") for line in told)
    assert (text.strip(), thought.strip()) == ("Yes, indeed.", "Hm.")
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert last["prompt_eval_count"] == len(engine.requests[0].prompt.token_ids)
    assert last["eval_count"] > len(told)
    durations = [value for name, value in last.items() if name.endswith("_duration")]
    assert len(durations) == 4 and all(isinstance(v, int) and v >= 0 for v in durations)
    whole = http.post("/api/chat", model="demo:latest", messages=HI, stream=False).json()
    assert whole["model"] == "demo:latest"
    assert whole["message"] == {"role": "assistant", "content": text, "thinking": thought}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_as_a_whole(http, engine, stream: bool) -> None:
    engine.reply = f"Let me look.\n{CALL}"
    body = {"messages": HI, "tools": [TOOL]}
    if stream:
        messages = [line["message"] for line in lines(http, "/api/chat", **body)]
        [message] = [message for message in messages if "tool_calls" in message]
    else:
        answer = http.post("/api/chat", model="demo", stream=False, **body).json()
        message = answer["message"]
        assert message["content"].strip() == "Let me look."
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": {"city": "Paris"}}


def test_results_of_tools_go_to_the_template(http, engine, tokenizer) -> None:
    called = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    messages = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
    ]
    lines(http, "/api/chat", messages=messages, tools=[TOOL])
    text = tokenizer.decode(engine.requests[0].prompt.token_ids, skip_special_tokens=False)
    assert '"arguments": {"city": "Paris"}' in text and "<tool_response>\nsunny" in text


def test_generate_answers_a_prompt(http, engine, tokenizer) -> None:
    found = lines(http, "/api/generate", prompt="One?", system="Be kind.")
    assert "".join(line["response"] for line in found) == "Hello there"
    text = tokenizer.decode(engine.requests[0].prompt.token_ids, skip_special_tokens=False)
    assert text.index("Be kind.") < text.index("One?") and "<|im_start|>" in text
    body = {"model": "demo", "prompt": "One?", "raw": True, "stream": False}
    answer = http("POST", "/api/generate", json=body).json()
    assert (answer["response"], answer["done_reason"]) == ("Hello there", "stop")
    text = tokenizer.decode(engine.requests[1].prompt.token_ids, skip_special_tokens=False)
    assert "One?" in text and "<|im_start|>" not in text


def test_options_reach_the_engine(http, engine) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["x"],
        "num_predict": 1,
        "num_ctx": 512,
        "repeat_penalty": 1.1,
        "num_gpu": 99,
        "mirostat": 0,
    }
    found = lines(http, "/api/chat", messages=HI, options=options, keep_alive="5m")
    assert found[-1]["done_reason"] == "length"
    params = engine.requests[0].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.9, 0.1)
    assert (params.seed, params.max_tokens, params.repetition_penalty) == (3, 1, 1.1)
    assert list(params.stop) == ["x"]
    lines(http, "/api/chat", messages=HI, options={"num_predict": -1})
    assert engine.requests[1].params.max_tokens is None


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_format_becomes_a_grammar(http, engine, path: str) -> None:
    given = {"messages": HI} if path == "/api/chat" else {"prompt": "x"}
    lines(http, path, format="json", think=False, **given)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    lines(http, path, format=schema, think=False, **given)
    first, second = (request.params.grammar for request in engine.requests)
    assert first.kind == "json_object" and json.loads(second.value) == schema
    if path == "/api/generate":
        lines(http, path, format=schema, raw=True, **given)
        assert json.loads(engine.requests[2].params.grammar.value) == schema


def test_nothing_to_answer_only_asks_for_the_model(http, engine) -> None:
    for path, given in (("/api/chat", {"messages": []}), ("/api/generate", {})):
        answer = http.post(path, model="demo", **given).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert not engine.requests


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": HI, "options": {"mirostat": 1}}, "options.mirostat"),
        ({"messages": HI, "options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"messages": HI, "options": {"num_ctx": 99999}}, "options.num_ctx"),
        ({"messages": HI, "options": {"repeat_penalty": -1}}, "options.repeat_penalty"),
        ({"messages": HI, "options": {"num_predict": -7}}, "options.num_predict"),
        ({"messages": HI, "options": {"temprature": 1}}, "options.temprature"),
        ({"messages": HI, "format": "xml"}, "format"),
        ({"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "template": "y"}, "template"),
        ({"prompt": "x", "context": [1]}, "context"),
    ],
)
def test_mistakes_are_named(http, engine, body, named: str) -> None:
    path = "/api/generate" if "prompt" in body else "/api/chat"
    response = http.post(path, model="demo", **body)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]
    assert not engine.requests


def test_a_long_format_is_named(open_http) -> None:
    http = open_http(ollama=True, max_schema_bytes=64)
    for path, given in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "x"})):
        schema = {"type": "string", "description": "x" * 64}
        response = http.post(path, model="demo", format=schema, **given)
        assert (response.status_code, "64 bytes" in response.json()["error"]) == (400, True)


def test_a_failure_on_the_way_is_a_line(http, engine) -> None:
    engine.fail_after = 1
    assert "error" in lines(http, "/api/chat", messages=HI)[-1]
    answer = http.post("/api/chat", model="demo", messages=HI, stream=False)
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert http.post("/api/chat", model="other", messages=HI).status_code == 404


def test_models_are_told_of(http) -> None:
    [model] = http.get("/api/tags").json()["models"]
    assert (model["name"], model["model"]) == ("demo", "demo") and len(model["digest"]) == 64
    shown = http.post("/api/show", model="demo").json()
    assert shown["model_info"]["hotshoe.context_length"] == 512
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert "im_start" in shown["template"]
    assert http.post("/api/show", name="demo").json()["details"] == model["details"]
    assert http.post("/api/show", model="none").status_code == 404
    assert http.get("/api/version").json() == {"version": __version__}


def test_texts_have_vectors(http, tokenizer) -> None:
    answer = http.post("/api/embed", model="demo:latest", input=["Hi", "Hello there"]).json()
    ids = [tokenizer.encode(text) for text in ("Hi", "Hello there")]
    assert answer["embeddings"] == ids and answer["model"] == "demo:latest"
    assert answer["prompt_eval_count"] == sum(map(len, ids))
    assert len(http.post("/api/embed", model="demo", input="Hi").json()["embeddings"]) == 1
    long = " ".join(["Hello"] * 600)
    [cut] = http.post("/api/embed", model="demo", input=long).json()["embeddings"]
    assert cut == tokenizer.encode(long)[:512]
    refused = http.post("/api/embed", model="demo", input=long, truncate=False)
    assert refused.status_code == 400 and "maximum context length" in refused.json()["error"]


def test_loaded_models_are_told_of(http, engine) -> None:
    [model] = http.get("/api/ps").json()["models"]
    [listed] = http.get("/api/tags").json()["models"]
    assert model["name"] == "demo" and model["digest"] == listed["digest"]
    assert model["context_length"] == 512 and model["expires_at"].startswith("2100")
    engine.is_sleeping = True
    assert http.get("/api/ps").json()["models"] == []


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_json_need_not_say_that_it_is(http, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    body = json.dumps({"model": "demo", "messages": HI, "stream": False}).encode()
    assert http("POST", "/api/chat", content=body, headers=headers).status_code == 200
    # A web page has to: for JSON it must ask first, and is told that it may not.
    page = {"origin": "http://elsewhere.example", **headers}
    refused = http("POST", "/api/chat", content=body, headers=page)
    assert (refused.status_code, list(refused.json())) == (415, ["error"])
