"""Vectors of texts over HTTP."""

import base64
import struct

import pytest

from hotshoe import LLM, AsyncEngine, EngineConfig, PoolingParams
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import make_state

PATH = "/v1/embeddings"


@pytest.mark.parametrize(
    ("value", "vectors"),
    [
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ([[1, 2, 3]] * 20, [[1, 2, 3]] * 20),
    ],
)
def test_each_text_has_its_vector(http, value, vectors) -> None:
    answer = http.post(PATH, input=value).json()
    assert answer["object"] == "list"
    assert [d["embedding"] for d in answer["data"]] == vectors
    assert [d["index"] for d in answer["data"]] == list(range(len(vectors)))
    assert {d["object"] for d in answer["data"]} == {"embedding"}
    count = sum(map(len, vectors))
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_text_is_tokenized_with_special_tokens(http, engine, tokenizer) -> None:
    http.post(PATH, input=["Hello", "there"])
    asked = [list(request.prompt.token_ids) for request in engine.requests]
    assert asked == [tokenizer.encode(text, True) for text in ("Hello", "there")]


def test_a_conversation_has_a_vector(http, engine, tokenizer) -> None:
    talk = [{"role": "user", "content": "Hello"}]
    assert len(http.post(PATH, messages=talk).json()["data"]) == 1
    assert http.post(PATH, messages=talk, add_generation_prompt=True).is_success
    for request, opens in zip(engine.requests, (False, True), strict=True):
        text = tokenizer.apply_chat_template(talk, add_generation_prompt=opens)
        assert list(request.prompt.token_ids) == tokenizer.encode(text, False)


def test_lengths_are_checked_in_order(http, engine, monkeypatch) -> None:
    seen = []
    encode = type(engine.tokenizer).encode
    monkeypatch.setattr(
        type(engine.tokenizer), "encode", lambda *a, **k: seen.append(a[1]) or encode(*a, **k)
    )
    response = http.post(PATH, input=["a", "b " * 600, "c", "d " * 10**5])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
    assert len(seen) == 2
    far = http.post("/score", text_1="a", text_2="d " * 10**5).json()["error"]
    assert (far["code"], far["param"]) == ("context_length_exceeded", "text_2")


def test_texts_are_cut(http) -> None:
    def cut(**fields) -> list[float]:
        return http.post(PATH, input=[5, 6, 7], **fields).json()["data"][0]["embedding"]

    assert cut(truncate_prompt_tokens=2) == [5, 6]
    assert cut(truncate_prompt_tokens=2, truncation_side="left") == [6, 7]
    long = http.post(PATH, input=[1] * 600, truncate_prompt_tokens=-1).json()
    assert long["usage"]["prompt_tokens"] == 512


def test_fields_of_vllm(http, engine) -> None:
    defaults = {"embed_dtype": "float32", "endianness": "native", "mm_processor_kwargs": {}}
    more = {"padding": "do_not_pad", "use_activation": False, "request_id": "r", "cache_salt": "s"}
    assert http.post(PATH, input=[5, 6], **defaults, **more).is_success
    [request] = engine.requests
    assert request.id == "embd-r-0" and request.prompt.cache_salt == "s"
    assert request.params.normalize is False


def test_base64_and_dimensions(http) -> None:
    answer = http.post(PATH, input=[5, 6, 7], encoding_format="base64", dimensions=2).json()
    [found] = answer["data"]
    assert struct.unpack("<2f", base64.b64decode(found["embedding"])) == (5.0, 6.0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": [1] * 513}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": "a", "padding": "max_length"}, "padding"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "endianness"),
        ({"input": "a", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ({"input": "a", "normalize": True, "use_activation": False}, "use_activation"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_what_cannot_be_embedded_is_named(http, engine, body, param) -> None:
    response = http.post(PATH, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert engine.requests == []


def test_a_prompt_of_full_length_needs_no_room(http) -> None:
    assert http.post(PATH, input=[1] * 512).status_code == 200


def test_a_vector_that_cannot_be_made_fails_the_request(http, engine) -> None:
    engine.fail_after = 0
    response = http.post(PATH, input=[[1], [2], [3]])
    assert response.status_code == 500
    assert "not finite" in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def options():
    return {"model": "demo", "platform": "cpu", "dtype": "float32", "pooling": "mean"}


def test_the_server_gives_the_vectors_of_the_offline_api(options, plugins, http) -> None:
    texts = ["Hello there", "The list of files", "Hello there"]
    with LLM(**options) as llm:
        offline = [o.embedding for o in llm.embed(texts, PoolingParams(dimensions=32))]
    engine = AsyncEngine(EngineConfig(**options))
    try:
        state = make_state(ServerConfig(), engine, plugins)
        http.app = create_app(state)
        answer = http.post(PATH, input=texts, dimensions=32).json()
        for found, vector in zip(answer["data"], offline, strict=True):
            assert found["embedding"] == pytest.approx(vector, abs=1e-6)
        refused = http.post(PATH, input=texts, dimensions=10**6)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")
    finally:
        engine.close()


def test_a_model_that_makes_no_vectors_says_so(options, plugins, http) -> None:
    engine = AsyncEngine(EngineConfig(**{**options, "pooling": None}))
    try:
        http.app = create_app(make_state(ServerConfig(), engine, plugins))
        response = http.post(PATH, input="Hello")
        assert response.status_code == 400
        assert "--pooling" in response.json()["error"]["message"]
    finally:
        engine.close()
