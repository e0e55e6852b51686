"""How close texts are, over HTTP."""

import math

import pytest

from hotshoe import LLM, AsyncEngine, EngineConfig
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import make_state


@pytest.fixture
def cosine(tokenizer):
    """What a model finds that makes the first token ids its vector, as the engine here does."""

    def found(*texts: str) -> float:
        one, other = ([*tokenizer.encode(text, True), 0, 0, 0][:4] for text in texts)
        product = sum(a * b for a, b in zip(one, other, strict=True))
        return product / math.hypot(*one) / math.hypot(*other)

    return found


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("one", "others"),
    [("Hello", "there"), ("Hello", ["there", "Hello"]), (["a", "Hello"], ["a", "there you are"])],
)
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_each_pair_has_its_score(http, cosine, path, one, others, names) -> None:
    answer = http.post(path, **dict(zip(names, (one, others), strict=True))).json()
    assert answer["object"] == "list" and answer["id"].startswith("score-")
    right = [others] if isinstance(others, str) else others
    left = [one] * len(right) if isinstance(one, str) else one
    wanted = [cosine(*pair) for pair in zip(left, right, strict=True)]
    assert [d["score"] for d in answer["data"]] == pytest.approx(wanted, abs=1e-6)
    assert [(d["index"], d["object"]) for d in answer["data"]] == [
        (i, "score") for i in range(len(wanted))
    ]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_order(http, engine, cosine, path) -> None:
    documents = ["the list", "Hello", {"text": "Hello there"}, "Hello"]
    answer = http.post(path, query="Hello", documents=documents, request_id="r").json()
    assert answer["id"] == "rerank-r"
    texts = ["the list", "Hello", "Hello there", "Hello"]
    scores = [cosine("Hello", text) for text in texts]
    results = answer["results"]
    assert [r["index"] for r in results] == sorted(range(4), key=lambda i: (-scores[i], i))
    assert [r["index"] for r in results][:2] == [1, 3]
    for found in results:
        assert found["relevance_score"] == pytest.approx(scores[found["index"]], abs=1e-6)
        assert found["document"] == {"text": texts[found["index"]]}
    assert answer["usage"]["total_tokens"] == sum(len(r.prompt.token_ids) for r in engine.requests)


def test_the_best_documents_alone_and_without_their_texts(http) -> None:
    body = {"query": "Hello there", "documents": ["the list", "Hello there", "of files"]}
    best = http.post("/rerank", **body, top_n=1, return_documents=False).json()["results"]
    assert [{**r, "relevance_score": round(r["relevance_score"], 6)} for r in best] == [
        {"index": 1, "relevance_score": 1.0}
    ]
    for count in (0, 3, 9):
        assert len(http.post("/rerank", **body, top_n=count).json()["results"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {}, "text_1"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ("/score", {"queries": ["a", "b"], "documents": ["a"] * 3}, "queries"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        ("/score", {"text_1": "a", "text_2": "b " * 600}, "text_2"),
        ("/score", {"text_1": "b " * 600, "text_2": "a"}, "text_1"),
        ("/score", {"queries": "a", "documents": ["b", ""]}, "documents"),
        ("/rerank", {"query": "b " * 600, "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a"}, "documents"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": ["a"], "documents": ["b"]}, "query"),
        ("/rerank", {"query": "a", "documents": [1]}, "documents"),
        ("/rerank", {"query": "a", "documents": [{"text": "b", "image": "c"}]}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "normalize": True}, "normalize"),
    ],
)
def test_what_cannot_be_compared_is_named(http, engine, path, body, param) -> None:
    response = http.post(path, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert engine.requests == []


def test_the_scores_of_a_model_are_those_of_its_vectors(plugins, http) -> None:
    options = {"model": "demo", "platform": "cpu", "dtype": "float32", "pooling": "mean"}
    texts = ["Hello there", "The list of files", "Hello"]
    with LLM(**options) as llm:
        query, *others = [output.embedding for output in llm.embed(texts)]
    engine = AsyncEngine(EngineConfig(**options))
    try:
        http.app = create_app(make_state(ServerConfig(), engine, plugins))
        answer = http.post("/score", text_1=texts[0], text_2=texts[1:]).json()
        for found, vector in zip(answer["data"], others, strict=True):
            product = sum(a * b for a, b in zip(query, vector, strict=True))
            assert found["score"] == pytest.approx(product, abs=1e-5)
    finally:
        engine.close()
