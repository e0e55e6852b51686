"""`/v1/completions` over a scripted engine: prompts, echo, log probabilities, streams."""

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

PATH = "/v1/completions"


def text_of(chunks: list[dict], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_an_answer_has_openais_shape(http) -> None:
    answer = http.post(PATH, prompt="Say").json()
    assert answer["object"] == "text_completion"
    [choice] = answer["choices"]
    assert choice == {"index": 0, "text": "Hello there", "logprobs": None, "finish_reason": "stop"}
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["usage"]["total_tokens"] > answer["usage"]["prompt_tokens"] > 0


def test_sixteen_tokens_unless_asked(http, engine) -> None:
    engine.reply = "one two three four five six seven eight nine ten " * 4
    assert http.post(PATH, prompt="x").json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a", "b"], 2), ([5, 6], 1), ([[5, 6], [7]], 2)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_of_prompt(http, engine, prompt, count: int, stream: bool) -> None:
    if stream:
        chunks = http.events(PATH, prompt=prompt, n=2, stream_options={"include_usage": True})
        assert [text_of(chunks, index) for index in range(2 * count)] == ["Hello there"] * 2 * count
        usage = chunks[-1]["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        answer = http.post(PATH, prompt=prompt, n=2).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
        usage = answer["usage"]
    assert len(engine.requests) == count
    assert usage["prompt_tokens"] == sum(len(r.prompt.token_ids) for r in engine.requests)
    assert len({request.id for request in engine.requests}) == count


@pytest.mark.parametrize(
    "prompt", [[], [[]], ["a", 1], [[1], 2], [[1, "a"]], [1.5], [None], [[[]]]]
)
def test_other_forms_are_refused(http, prompt) -> None:
    response = http.post(PATH, prompt=prompt)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize("stream", [False, True])
def test_echo(http, stream: bool) -> None:
    if stream:
        assert text_of(http.events(PATH, prompt="Say: ", echo=True)) == "Say: Hello there"
    else:
        [choice] = http.post(PATH, prompt="Say: ", echo=True).json()["choices"]
        assert choice["text"] == "Say: Hello there"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_the_prompt_alone(http, stream: bool) -> None:
    body = {"prompt": "Say: ", "echo": True, "max_tokens": 0}
    if stream:
        *events, last = http.events(PATH, **body, stream_options={"include_usage": True})
        assert text_of(events) == "Say: "
    else:
        last = http.post(PATH, **body).json()
        [choice] = last["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("Say: ", "length")
    assert last["usage"]["completion_tokens"] == 0
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"]


def test_no_tokens_without_echo_is_a_mistake(http) -> None:
    error = http.post(PATH, prompt="x", max_tokens=0).json()["error"]
    assert error["param"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(http, stream: bool) -> None:
    body = {"prompt": "Say", "logprobs": 2}
    if stream:
        parts = [c["choices"][0]["logprobs"] for c in http.events(PATH, **body)]
        found = {name: [x for part in parts for x in part[name]] for name in parts[0]}
    else:
        found = http.post(PATH, **body).json()["choices"][0]["logprobs"]
    assert "".join(found["tokens"]).startswith("Hello there")
    assert found["token_logprobs"][0] == -0.5
    assert len(found["top_logprobs"][0]) == 3  # the token that came is none of the two
    offsets = found["text_offset"]
    assert offsets[:2] == [0, len(found["tokens"][0])]


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        (PATH, {"prompt": "Say"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say"}]}),
        ("/inference/v1/generate", {"token_ids": [5, 6]}),
    ],
)
def test_log_probabilities_of_the_prompt(http, path: str, ask: dict[str, object]) -> None:
    """A stream has them once, as the answer has them."""

    def found(answer: dict[str, Any]) -> list[Any]:
        return [
            x["prompt_logprobs"] for x in (answer, *answer["choices"]) if "prompt_logprobs" in x
        ]

    [whole] = found(http.post(path, **ask, prompt_logprobs=0).json())
    assert whole[0] is None and [p["logprob"] for p in whole[1].values()] == [-0.25]
    first, *others = http.events(path, **ask, prompt_logprobs=0)
    assert found(first) == [whole]
    assert not any(map(found, others))


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_said_of_a_prompt_is_made_once_for_all_choices(http, monkeypatch, stream) -> None:
    made = []
    for name in ("completions", "chat"):
        place = "endpoints.completions" if name == "completions" else "chat_stream"
        monkeypatch.setattr(
            f"hotshoe_server.{place}.prompt_logprobs",
            lambda tokenizer, positions: made.append(positions) or [],
        )
    asked = {"n": 3, "prompt_logprobs": 0, "stream": stream}
    assert http.post(PATH, prompt=["Say", "it"], **asked).status_code == 200
    assert len(made) == 2
    if stream:
        messages = [{"role": "user", "content": "Say"}]
        assert http.post("/v1/chat/completions", messages=messages, **asked).status_code == 200
        assert len(made) == 3


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        (PATH, {"prompt": "Say", "logprobs": 20}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say"}]}),
        ("/inference/v1/generate", {"token_ids": [5, 6], "logprobs": 20}),
    ],
)
def test_an_answer_that_could_be_huge_is_refused_or_streamed(
    open_http, engine, path: str, ask: dict[str, object]
) -> None:
    engine.config = replace(engine.config, max_model_len=2**17)
    engine.info = replace(engine.info, config=engine.config)
    http = open_http()
    if "chat" in path:
        ask |= {"logprobs": True, "top_logprobs": 20}
    refused = http.post(path, **ask, n=64, max_tokens=2**16)
    assert refused.status_code == 400 and "could have" in refused.text
    assert engine.requests == []
    assert http.post(path, **ask, n=64, max_tokens=2**16, stream=True).status_code == 200
    assert http.post(path, **ask, n=64, max_tokens=64).status_code == 200


def test_suffix_is_refused_by_name(http) -> None:
    response = http.post(PATH, prompt="x", suffix="y")
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "suffix is not supported here; leave it out",
        "type": "invalid_request_error",
        "param": "suffix",
        "code": "unsupported_parameter",
    }


def test_vllms_fields_reach_the_engine(http, engine) -> None:
    body = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "min_tokens": 2,
        "bad_words": ["bad"],
        "allowed_token_ids": [1, 2],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logit_bias": {"5": 1.5},
        "stop": "END",
        "seed": 3,
        "structured_outputs": {"choice": ["yes", "no"]},
    }
    assert http.post(PATH, prompt="x", **body).status_code == 200
    params = engine.requests[0].params
    assert (params.top_k, params.min_p, params.repetition_penalty) == (5, 0.1, 1.5)
    assert (params.stop_token_ids, params.ignore_eos, params.min_tokens) == ((7,), True, 2)
    assert (params.bad_words, params.allowed_token_ids) == (("bad",), (1, 2))
    assert params.include_stop_str_in_output and not params.skip_special_tokens
    assert (params.logit_bias, params.stop, params.seed) == ({5: 1.5}, ("END",), 3)
    assert params.grammar.kind == "choice"


def test_too_many_sequences(open_http) -> None:
    http = open_http(max_sequences=4)
    response = http.post(PATH, prompt=["a", "b", "c"], n=2)
    assert response.status_code == 400
    assert "6 sequences" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"prompt": [5] * 512}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "no " * 512}]}),
        ("/v1/responses", {"input": "no " * 512}),
        ("/inference/v1/generate", {"token_ids": [5] * 512}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(http, engine, path: str, body, stream: bool) -> None:
    error = http.post(path, **body, stream=stream).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == next(iter(body))
    assert engine.requests == []


@pytest.mark.parametrize("name", ["x", "", "-1", " 5", "1_0", "٥", "9" * 30])
def test_biases_are_of_token_ids(http, engine, name: str) -> None:
    answer = http.post(PATH, prompt="x", logit_bias={name: 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert engine.requests == []


@pytest.mark.parametrize("path", [PATH, "/inference/v1/generate"])
def test_usage_in_every_chunk_when_asked(http, path: str) -> None:
    prompt = {"prompt": "x"} if path == PATH else {"token_ids": [5]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = http.events(path, **prompt, n=2, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1]


def npy(array) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return base64.b64encode(file.getvalue()).decode()


def test_prompt_embeddings_come_before_prompts(http, engine) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    answer = http.post(PATH, prompt_embeds=[npy(rows), npy(rows[:1])], prompt=[5, 6]).json()
    assert [c["text"] for c in answer["choices"]] == ["Hello there"] * 3
    first, second, third = (r.prompt for r in engine.requests)
    np.testing.assert_array_equal(first.embeds, rows)
    np.testing.assert_array_equal(second.embeds, rows[:1])
    assert third.token_ids == [5, 6]
    assert answer["usage"]["prompt_tokens"] == 3 + 1 + 2


HUGE = io.BytesIO()
np.lib.format.write_array_header_1_0(
    HUGE, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)}
)
HUGE = HUGE.getvalue()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("?", "base64"),
        ("", "numpy.save"),
        (base64.b64encode(b"PK\3\4rest").decode(), "never unpacked"),
        (base64.b64encode(b"\x80\x04K\x01.").decode(), "numpy.save"),
        (npy(np.array([{}], dtype=object)), "numpy.save"),
        (npy(np.ones((3, 4), np.float32))[:-8], "does not match its size"),
        (npy(np.ones((3, 4), np.float32)).replace(npy(np.ones((3, 4)))[:1], "A", 1), "numpy.save"),
        (base64.b64encode(HUGE).decode(), "does not match its size"),
    ],
)
def test_malformed_prompt_embeddings_are_named(http, engine, value, words) -> None:
    response = http.post(PATH, prompt_embeds=[value])
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "prompt_embeds" and words in error["message"]
    assert engine.requests == []


def test_prompt_or_embeddings(http) -> None:
    assert http.post(PATH).json()["error"]["param"] == "prompt"
    rows = npy(np.ones((1, 2), np.float32))
    assert http.post(PATH, prompt_embeds=rows, prompt=None).status_code == 200
    assert http.post(PATH, prompt_embeds=rows, echo=True).json()["error"]["param"] == "echo"


@pytest.mark.parametrize(
    "more", [{"echo": True, "logprobs": 5}, {"prompt_logprobs": 5}], ids=["echo", "prompt_logprobs"]
)
def test_an_answer_does_not_repeat_a_prompt_without_end(http, engine, more: dict) -> None:
    refused = http.post(PATH, prompt=[1] * 400, n=64, max_tokens=1, **more)
    assert refused.status_code == 400 and "would repeat" in refused.text
    assert engine.requests == []
    few = http.post(PATH, prompt=[1, 2], n=64, max_tokens=1, **more)
    assert few.status_code == 200, few.text
    assert len(few.json()["choices"]) == 64


def test_a_text_that_repeats_itself_ends(http, engine) -> None:
    engine.reply = "Hello" + " there" * 20
    wanted = {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}
    asked = {"prompt": "x", "max_tokens": 30, "repetition_detection": wanted}
    [choice] = http.post(PATH, **asked).json()["choices"]
    assert choice["text"] == "Hello there there there"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    [choice] = http.post(PATH, **asked | {"repetition_detection": {}}).json()["choices"]
    assert choice["finish_reason"] == "stop"
    error = http.post(PATH, **asked | {"repetition_detection": {"x": 1}}).json()["error"]
    assert error["param"] == "repetition_detection.x"
