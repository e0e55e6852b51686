"""How many tokens a model may think: what the engine is asked for, and who is refused."""

import pytest

from hotshoe_server.forms import THINKING as FIELD

PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Hi"}]
OPEN = {"role": "assistant", "content": "<think>\n"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def ids(tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def test_a_response_that_may_open_its_reasoning(open_http, engine, tokenizer) -> None:
    http = open_http(reasoning_parser="qwen3")
    assert http.post(PATH, messages=ASK, thinking_token_budget=7).status_code == 200
    grammar = engine.requests[0].params.grammar
    assert (grammar.kind, grammar.free_tokens) == ("text", 7)
    assert grammar.after == (ids(tokenizer, "</think>"),)
    assert grammar.opening == (ids(tokenizer, "<think>"),)


def test_a_prompt_that_has_opened_it(open_http, engine, tokenizer) -> None:
    http = open_http(reasoning_parser="qwen3")
    asked = {"messages": [*ASK, OPEN], "continue_final_message": True}
    assert http.post(PATH, **asked, thinking_token_budget=0).status_code == 200
    assert http.post(PATH, **asked, thinking_token_budget=5, response_format=SCHEMA).is_success
    plain, formed = (request.params.grammar for request in engine.requests)
    assert (plain.kind, plain.free_tokens, plain.opening) == ("text", 0, ())
    assert (formed.kind, formed.free_tokens) == ("json_schema", 5)
    assert plain.after == formed.after == (ids(tokenizer, "</think>"),)


def test_an_answer_in_a_form_that_leaves_no_reasoning(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    http.post(PATH, messages=ASK, thinking_token_budget=5, response_format=SCHEMA)
    assert engine.requests[0].params.grammar.free_tokens is None


def test_responses_and_messages(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    http.post("/v1/responses", input="Hi", thinking_token_budget=6)
    thinking = {"type": "enabled", "budget_tokens": 8}
    http.post("/v1/messages", messages=ASK, max_tokens=9, thinking=thinking)
    assert [request.params.grammar.free_tokens for request in engine.requests] == [6, 8]


@pytest.mark.parametrize(
    ("parser", "path", "asked", "message"),
    [
        ("none", PATH, {"messages": ASK}, "there is none; the server needs --reasoning-parser"),
        ("harmony", PATH, {"messages": ASK}, "format harmony has no mark that ends all reasoning"),
        ("qwen3", "/v1/completions", {"prompt": "Hi"}, "is not supported here"),
        ("qwen3", "/inference/v1/generate", {"token_ids": [1]}, "is not supported here"),
    ],
)
def test_who_is_refused(open_http, parser: str, path: str, asked, message: str) -> None:
    http = open_http(reasoning_parser=parser)
    answer = http.post(path, **asked, thinking_token_budget=5)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == FIELD
    assert message in error["message"]


def test_messages_without_a_mark_have_no_limit(open_http, engine) -> None:
    thinking = {"type": "enabled", "budget_tokens": 8}
    asked = {"messages": ASK, "max_tokens": 9, "thinking": thinking}
    assert open_http(reasoning_parser="none").post("/v1/messages", **asked).status_code == 200
    assert engine.requests[0].params.grammar is None


@pytest.mark.parametrize("budget", [-2, 2**31, 1.5, "5", True])
def test_a_budget_is_a_count(http, budget) -> None:
    answer = http.post(PATH, messages=ASK, thinking_token_budget=budget)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == FIELD
