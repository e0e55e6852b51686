"""`use_beam_search`: the likeliest texts of the scripted engine, and what does not go with it."""

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}]}
SEARCH = {"use_beam_search": True, "n": 3, "max_tokens": 2}


def test_completions_have_the_likeliest_texts_in_order(http, engine) -> None:
    # After every text the engine gives token 100 + i the log probability -1 - i.
    answer = http.post(COMPLETIONS, prompt="Hi", return_token_ids=True, logprobs=0, **SEARCH).json()
    found = [(c["index"], c["token_ids"], c["finish_reason"]) for c in answer["choices"]]
    assert found[0] == (0, [100, 100], "length")
    assert sorted(found[1:], key=lambda c: c[1]) != []
    assert {tuple(ids) for _, ids, _ in found[1:]} == {(100, 101), (101, 100)}
    assert next(c["logprobs"]["token_logprobs"] for c in answer["choices"]) == [-1.0, -1.0]
    tokenizer = engine.tokenizer
    assert answer["choices"][0]["text"] == tokenizer.decode([100, 100])
    usage = answer["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (6, 1)
    assert [r.params.logprobs for r in engine.requests] == [6] * 4
    assert not http.state.in_flight


def test_chat_searches_too(http, engine) -> None:
    answer = http.post(CHAT, **ASK, **SEARCH)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2]
    assert choices[0]["message"]["content"] == engine.tokenizer.decode([100, 100])
    assert choices[0]["logprobs"] is None


def test_one_beam_without_n(http, engine) -> None:
    answer = http.post(COMPLETIONS, prompt="Hi", use_beam_search=True, max_tokens=3).json()
    assert [c["text"] for c in answer["choices"]] == [engine.tokenizer.decode([100] * 3)]


def test_observers_hear_of_one_request(open_http, engine) -> None:
    class Observer:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def __getattr__(self, name: str):
            return lambda *_: self.heard.append(name)

    http = open_http()
    http.state.observers.append(observer := Observer())
    http.post(COMPLETIONS, prompt="Hi", **SEARCH)
    assert observer.heard == ["begin", "advance", "end"]


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        (COMPLETIONS, {"stream": True}, "stream"),
        (COMPLETIONS, {"stop": ["x"]}, "stop"),
        (COMPLETIONS, {"logprobs": 2}, "logprobs"),
        (CHAT, {"seed": 3}, "seed"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"n": 11}, "n"),
        (CHAT, {"length_penalty": 99}, "length_penalty"),
        ("/inference/v1/generate", {}, "use_beam_search"),
        ("/v1/responses", {}, "use_beam_search"),
        (CHAT, {"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
    ],
)
def test_what_does_not_go_with_it(http, engine, path: str, more, field: str) -> None:
    asked = {
        COMPLETIONS: {"prompt": "Hi"},
        CHAT: ASK,
        "/v1/responses": {"input": "Hi"},
        "/inference/v1/generate": {"token_ids": [1]},
    }[path]
    answer = http.post(path, **asked, **{"use_beam_search": True, **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert not http.state.in_flight


def test_a_forced_call_is_not_searched_for(http) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = http.post(CHAT, **ASK, **SEARCH, tools=[tool], tool_choice="required")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("tool_choice", "tools")


def test_a_step_that_fails_fails_the_request(http, engine) -> None:
    engine.fail_after = 0
    answer = http.post(COMPLETIONS, prompt="Hi", **SEARCH)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed"
