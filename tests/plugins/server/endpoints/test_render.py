"""Requests in two halves: rendered to tokens, generated from tokens, and read."""

import random

import pytest

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
GENERATE = "/inference/v1/generate"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.25}


def generated(http, rendered: dict, **more) -> dict:
    answer = http.post(GENERATE, **rendered, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("reply", ["Hello there", "<think>\nHm.\n</think>\n\nYes", CALL])
@pytest.mark.parametrize("n", [1, 2])
def test_the_halves_of_a_chat_say_what_the_whole_does(open_http, engine, reply, n: int) -> None:
    http, engine.reply = open_http(reasoning_parser="qwen3"), reply
    asked = {**ASKED, "tools": [TOOL], "n": n, "stop_token_ids": [8183]}
    whole = http.post(CHAT, **asked).json()
    rendered = http.post(f"{CHAT}/render", **asked).json()
    answer = generated(http, rendered)
    one, other = engine.requests
    assert (one.params, one.prompt) == (other.params, other.prompt)
    read = http.post(
        f"{CHAT}/derender",
        generate_response=answer,
        prompt_tokens=len(rendered["token_ids"]),
        chat_request=asked,
    ).json()
    assert read["id"] == rendered["request_id"] == answer["request_id"]
    for one, other in zip(whole["choices"], read["choices"], strict=True):
        for call in one["message"].get("tool_calls", []) + other["message"].get("tool_calls", []):
            call.pop("id")
        assert one == other
    counts = ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details")
    assert [read["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]


def carried(http, path: str, chunks: list[dict], rng: random.Random, **more: object) -> list:
    """Have chunks read one after another, some of them joined; return what they became."""
    state, found = None, []
    while chunks:
        first, *chunks = chunks
        while chunks and chunks[0]["choices"] and first["choices"] and rng.random() < 0.4:
            other, *chunks = chunks
            [old], [new] = first["choices"], other["choices"]
            joined = {**old, **new, "token_ids": [*old["token_ids"], *new["token_ids"]]}
            first = {**first, "choices": [joined]}
        body = {"generate_chunk": first, "stream": True, "stream_state": state, **more}
        answer = http.post(path, **body)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["chunk"])
        state = answer.json()["stream_state"]
    return found


def joined_message(chunks: list[dict]) -> tuple[dict[str, str], list[list[str]], str]:
    """Return texts by field, names and arguments of calls, and the reason of the end."""
    texts: dict[str, str] = {}
    calls: list[list[str]] = []
    [reason] = [c["finish_reason"] for x in chunks for c in x["choices"] if c["finish_reason"]]
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        for name in ("role", "content", "reasoning", "reasoning_content"):
            texts[name] = texts.get(name, "") + (delta.get(name) or "")
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"].get("arguments") or ""
    return texts, calls, reason


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "reply",
    [
        "Hello there",
        "<think>\nHm.\n</think>\n\nYes",
        f"Well.\n{CALL}",
        "Grüße ✓ 🙂",
        f"{CALL}\n{CALL}",
    ],
)
def test_chunks_of_a_stream_become_those_of_a_chat(open_http, engine, reply, seed: int) -> None:
    http, engine.reply = open_http(reasoning_parser="qwen3"), reply
    asked = {**ASKED, "tools": [TOOL], "stop_token_ids": [8183]}
    whole = http.events(CHAT, **asked, stream_options={"include_usage": True})
    rendered = http.post(f"{CHAT}/render", **asked).json()
    request = {k: rendered[k] for k in ("request_id", "token_ids", "sampling_params")}
    chunks = http.events(GENERATE, **request, stream_options={"include_usage": True})
    read = carried(http, f"{CHAT}/derender", chunks, random.Random(seed), chat_request=asked)
    assert joined_message(read) == joined_message(whole)
    assert {chunk["id"] for chunk in read} == {rendered["request_id"]}
    assert {chunk["object"] for chunk in read} == {"chat.completion.chunk"}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert read[-1]["usage"][name] == whole[-1]["usage"][name]


@pytest.mark.parametrize("seed", range(3))
def test_chunks_of_a_stream_become_those_of_completions(http, engine, seed: int) -> None:
    engine.reply = "Grüße ✓ 🙂 to all there"
    asked = {"prompt": "Once", "logprobs": 1, "max_tokens": 40, "stop": ["there"]}
    whole = http.post(COMPLETE, **asked).json()["choices"][0]
    [rendered] = http.post(f"{COMPLETE}/render", **asked).json()
    request = {k: rendered[k] for k in ("request_id", "token_ids", "sampling_params")}
    chunks = http.events(GENERATE, **request)
    path, rng = f"{COMPLETE}/derender", random.Random(seed)
    choices = [
        c for x in carried(http, path, chunks, rng, completion_request=asked) for c in x["choices"]
    ]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert choices[-1]["stop_reason"] == whole["stop_reason"]


def test_log_probabilities_of_chunks_go_on(http, engine) -> None:
    engine.reply = "Hello to all"
    asked = {"prompt": "Once", "logprobs": 1, "max_tokens": 40, "stop_token_ids": [8183]}
    whole = http.post(COMPLETE, **asked).json()["choices"][0]["logprobs"]
    [rendered] = http.post(f"{COMPLETE}/render", **asked).json()
    request = {k: rendered[k] for k in ("request_id", "token_ids", "sampling_params")}
    state, found = None, {name: [] for name in whole}
    for chunk in http.events(GENERATE, **request):
        body = {"generate_chunk": chunk, "stream": True, "stream_state": state}
        answer = http.post(f"{COMPLETE}/derender", completion_request=asked, **body).json()
        state = answer["stream_state"]
        for name, values in answer["chunk"]["choices"][0]["logprobs"].items():
            found[name] += values
    assert found == whole


@pytest.mark.parametrize(
    "form",
    [
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": True}},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": "required"},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"not": {}}, "strict": False},
            }
        },
    ],
)
def test_forms_of_text_are_rendered(open_http, engine, form: dict) -> None:
    http = open_http(reasoning_parser="qwen3")
    http.post(CHAT, **ASKED, **form)
    rendered = http.post(f"{CHAT}/render", **ASKED, **form).json()
    generated(http, rendered)
    assert engine.requests[0].params.grammar == engine.requests[1].params.grammar


def test_a_form_that_waits_for_the_end_of_reasoning_still_does(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    variables = {"chat_template_kwargs": {"enable_thinking": True}}
    form = {"structured_outputs": {"regex": "a+"}, **variables}
    http.post(CHAT, **ASKED, **form)
    assert engine.requests[0].params.grammar.after
    generated(http, http.post(f"{CHAT}/render", **ASKED, **form).json())
    assert engine.requests[0].params.grammar == engine.requests[1].params.grammar


def test_the_halves_of_completions(http, engine, tokenizer) -> None:
    asked = {"prompt": ["Once", "Twice upon"], "logprobs": 1, "max_tokens": 4, "stop": ["there"]}
    whole = http.post(COMPLETE, **asked).json()
    rendered = http.post(f"{COMPLETE}/render", **asked).json()
    assert [r["token_ids"] for r in rendered] == [tokenizer.encode(t) for t in asked["prompt"]]
    answers = [generated(http, one) for one in rendered]
    read = http.post(
        f"{COMPLETE}/derender",
        generate_responses=answers,
        prompt_tokens=[len(one["token_ids"]) for one in rendered],
        completion_request=asked,
    ).json()
    assert read["choices"] == whole["choices"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert read["usage"][name] == whole["usage"][name]


def test_tokens_of_log_probabilities_get_their_names(http, tokenizer) -> None:
    [token] = tokenizer.encode(" there")
    entry = {"token": f"token_id:{token}", "logprob": -1.0, "bytes": None}
    choice = {"token_ids": [token], "logprobs": {"content": [{**entry, "top_logprobs": [entry]}]}}
    response = {"request_id": "x", "choices": [choice], "prompt_logprobs": [None]}
    read = http.post(f"{CHAT}/derender", generate_response=response).json()
    [found] = read["choices"][0]["logprobs"]["content"]
    assert found["token"] == found["top_logprobs"][0]["token"] == " there"
    assert bytes(found["bytes"]) == b" there" and read["prompt_logprobs"] == [None]
    read = http.post(f"{COMPLETE}/derender", generate_responses=[response]).json()
    assert read["choices"][0]["logprobs"]["tokens"] == [" there"]
    entry["token"] = "token_id:99999999"  # which no token has
    choice["logprobs"]["content"] = [{**entry, "top_logprobs": []}]
    read = http.post(f"{CHAT}/derender", generate_response=response).json()
    assert read["choices"][0]["logprobs"]["content"][0]["token"] == entry["token"]


ONE = {"request_id": "x", "choices": [{"token_ids": [5]}]}
NEW = {"request_id": "x", "choices": [{"token_ids": [5]}]}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{CHAT}/render", {**ASKED, "use_beam_search": True}, "use_beam_search"),
        (f"{CHAT}/render", {**ASKED, "max_tokens": 600}, "max_tokens"),
        (f"{CHAT}/render", {**ASKED, "model": "none"}, "model"),
        (f"{COMPLETE}/render", {"prompt": "x", "echo": True}, "echo"),
        (f"{COMPLETE}/render", {"prompt": []}, "prompt"),
        (f"{CHAT}/derender", {"generate_response": ONE, "stream": True}, "generate_chunk"),
        (f"{CHAT}/derender", {"generate_chunk": NEW}, "generate_response"),
        (f"{COMPLETE}/derender", {"generate_chunk": NEW}, "generate_responses"),
        (
            f"{COMPLETE}/derender",
            {"generate_chunk": NEW, "stream": True, "stream_state": {"token_ids": [8192]}},
            "stream_state",
        ),
        (
            f"{CHAT}/derender",
            {"generate_chunk": NEW, "stream": True, "stream_state": {"token_ids": [5] * 512}},
            "stream_state",
        ),
        (
            f"{CHAT}/derender",
            {"generate_chunk": {**NEW, "choices": NEW["choices"] * 2}, "stream": True},
            "generate_chunk.choices",
        ),
        (f"{CHAT}/derender", {"generate_response": ONE, "model": "none"}, "model"),
        (
            f"{CHAT}/derender",
            {"generate_response": {**ONE, "choices": [{"token_ids": []}]}},
            "generate_response.choices[0].token_ids",
        ),
        (
            f"{CHAT}/derender",
            {"generate_response": {**ONE, "choices": [{"token_ids": [8192]}]}},
            "generate_response.choices[0].token_ids",
        ),
        (f"{COMPLETE}/derender", {"generate_responses": []}, "generate_responses"),
        (
            f"{COMPLETE}/derender",
            {"generate_responses": [ONE], "prompt_tokens": [1, 2]},
            "prompt_tokens",
        ),
    ],
)
def test_mistakes_are_named(http, engine, path: str, body: dict, field: str) -> None:
    answer = http.post(path, **body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["param"] == field
    assert engine.requests == []
