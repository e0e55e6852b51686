"""`/invocations`: one path for chat and completions."""

PATH = "/invocations"
ASK = [{"role": "user", "content": "x"}]


def test_messages_are_chat_and_all_else_completions(http, engine) -> None:
    answer = http.post(PATH, messages=ASK, request_id="mine").json()
    assert (answer["object"], answer["id"]) == ("chat.completion", "chatcmpl-mine")
    assert http.post(PATH, prompt="x").json()["object"] == "text_completion"
    kinds = {chunk["object"] for chunk in http.events(PATH, messages=ASK)}
    assert kinds == {"chat.completion.chunk"}


def test_mistakes_are_named(http) -> None:
    for body, param in (
        ({"messages": ASK, "nonsense": 1}, "nonsense"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"prompt": "x", "n": "one"}, "n"),
        ({"messages": ASK, "max_tokens": 10_000}, "max_tokens"),
        ({}, "prompt"),
    ):
        answer = http.post(PATH, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
