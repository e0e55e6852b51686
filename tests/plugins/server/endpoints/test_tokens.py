"""Tokens as values: to and from text, and generated from tokens."""

import pytest


def test_there_and_back(http) -> None:
    answer = http.post("/tokenize", prompt="Hello there", return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    assert "".join(answer["token_strs"]) == "Hello there"
    assert http.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "Hello there"}


def test_a_conversation_is_tokenized_as_chat_does_it(http, engine) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tokens = http.post("/tokenize", messages=messages).json()["tokens"]
    http.post("/v1/chat/completions", messages=messages)
    assert tokens == list(engine.requests[0].prompt.token_ids)
    bare = http.post("/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert tokens[: len(bare)] == bare
    assert len(bare) < len(tokens)


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": []}])
def test_either_a_prompt_or_a_conversation(http, body) -> None:
    assert http.post("/tokenize", **body).status_code == 400


@pytest.mark.parametrize("tokens", [[-1], [8192], [2**63], [2**70], ["a"], [1.0]])
def test_ids_outside_the_vocabulary(http, tokens) -> None:
    for path, name in (("/detokenize", "tokens"), ("/inference/v1/generate", "token_ids")):
        response = http.post(path, **{name: tokens})
        assert response.status_code == 400, response.text


def test_no_tokens(http) -> None:
    assert http.post("/detokenize", tokens=[]).json() == {"prompt": ""}
    error = http.post("/inference/v1/generate", token_ids=[]).json()["error"]
    assert error["param"] == "token_ids"


def test_tokens_in_tokens_out(http, engine, tokenizer) -> None:
    answer = http.post("/inference/v1/generate", token_ids=[5, 6], logprobs=1).json()
    [choice] = answer["choices"]
    assert tokenizer.decode(choice["token_ids"]) == "Hello there"
    assert "text" not in choice
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == (f"token_id:{choice['token_ids'][0]}", None)
    assert [first["logprob"], first["top_logprobs"][0]["logprob"]] == [-0.5, -1.0]
    assert not engine.requests[0].params.detokenize
    chunks = http.events(
        "/inference/v1/generate",
        token_ids=[5, 6],
        detokenize=True,
        n=2,
        stream_options={"include_usage": True},
    )
    for index in range(2):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [t for c in parts for t in c["token_ids"]] == choice["token_ids"]
        assert "".join(c.get("text", "") for c in parts) == "Hello there"
        assert [c["finish_reason"] for c in parts][-1] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 2 * len(choice["token_ids"])


def test_stop_strings_need_text(http, engine) -> None:
    http.post("/inference/v1/generate", token_ids=[5], stop=["there"])
    assert engine.requests[0].params.detokenize


def test_special_tokens_of_a_conversation(http, monkeypatch, tokenizer) -> None:
    asked = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(
        type(tokenizer),
        "encode",
        lambda self, text, add_special_tokens=True, marked=False: (
            asked.append(add_special_tokens) or encode(self, text, add_special_tokens, marked)
        ),
    )
    body = {"messages": [{"role": "user", "content": "x"}]}
    for more in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
        assert http.post("/tokenize", **body, **more).status_code == 200
    for more in ({}, {"add_special_tokens": False}):
        assert http.post("/tokenize", prompt="x", **more).status_code == 200
    assert asked == [False, False, True, True, False]


def test_parameters_in_vllms_place(http, engine) -> None:
    path, params = "/inference/v1/generate", {"temperature": 0.25, "top_k": 3, "output_kind": 2}
    answer = http.post(path, token_ids=[5], sampling_params=params, request_id="mine").json()
    asked = engine.requests[0].params
    assert (asked.temperature, asked.top_k, answer["request_id"]) == (0.25, 3, "mine")
    for more, field in (
        ({"sampling_params": {"top_k": 3}, "top_k": 4}, "sampling_params.top_k"),
        ({"sampling_params": {"top_k": "3"}}, "sampling_params.top_k"),
        ({"sampling_params": {"flat_logprobs": True}}, "flat_logprobs"),
        ({"features": {"mm_hashes": {}}}, "features"),
    ):
        error = http.post(path, token_ids=[5], **more).json()["error"]
        assert error["param"] == field


def test_fields_of_vllm_that_ask_for_nothing(http) -> None:
    for field in ("mm_processor_kwargs", "media_io_kwargs"):
        assert http.post("/tokenize", prompt="Say", **{field: {}}).is_success
        response = http.post("/tokenize", prompt="Say", **{field: {"size": 1}})
        assert response.status_code == 400 and response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/inference/v1/generate", {"token_ids": [5]}),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {}}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_nobody_cuts_prompts_here(http, path: str, body: dict) -> None:
    place = body.get("sampling_params", body)
    assert http.post(path, **body).is_success
    place["truncate_prompt_tokens"] = 4
    response = http.post(path, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].endswith("truncate_prompt_tokens")
