"""Classes of texts and pairs over HTTP."""

import base64
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch
import transformers

from hotshoe import AsyncEngine, EngineConfig
from hotshoe.types.classes import Classifier
from hotshoe_demo import MODEL
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import make_state

LABELS = {0: "bad", 1: "good", 2: "odd"}
TALK = [{"role": "user", "content": "b"}]
TEXTS = ["Hello there", "The list of files"]


def make(path, labels) -> transformers.PreTrainedModel:
    """Save a tiny model of classes with the demo's tokenizer, and return it."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        id2label=labels,
    )
    model = transformers.LlamaForSequenceClassification(config).eval()
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text((MODEL / name).read_text())
    return model


@pytest.fixture(scope="module", params=[LABELS, {0: "match"}], ids=["classes", "pairs"])
def served(request, tmp_path_factory) -> Iterator[tuple[AsyncEngine, transformers.PreTrainedModel]]:
    path = tmp_path_factory.mktemp("classes")
    model = make(path, request.param)
    engine = AsyncEngine(EngineConfig(str(path), platform="cpu", dtype="float32"))
    yield engine, model
    engine.close()


@pytest.fixture
def app(served, plugins, http):
    http.app = create_app(make_state(ServerConfig(), served[0], plugins))
    return http


@torch.inference_mode()
def logits(model, ids) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def test_each_text_has_its_class(app, served) -> None:
    engine, model = served
    count = model.config.num_labels
    for path in ("/classify", "/v1/classify"):
        answer = app.post(path, input=TEXTS).json()
        assert answer["object"] == "list" and answer["id"].startswith("classify-")
        for index, (found, text) in enumerate(zip(answer["data"], TEXTS, strict=True)):
            own = logits(model, engine.tokenizer.encode(text))
            probs = own.softmax(0) if count > 1 else own.sigmoid()
            assert found["probs"] == pytest.approx(probs.tolist(), abs=1e-5)
            assert found["label"] == model.config.id2label[int(own.argmax())]
            assert (found["index"], found["num_classes"]) == (index, count)
    ids = [[5, 6, 7], [8]]
    raw = app.post("/classify", input=ids, use_activation=False).json()
    assert raw["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    for found, prompt in zip(raw["data"], ids, strict=True):
        assert found["probs"] == pytest.approx(logits(model, prompt).tolist(), abs=1e-4)


def test_pooling_gives_numbers(app, served) -> None:
    _, model = served
    asked = {"input": [5, 6, 7], "use_activation": False}
    wanted = pytest.approx(logits(model, [5, 6, 7]).tolist(), abs=1e-4)
    for more in ({}, {"task": "classify"}):
        [found] = app.post("/pooling", **asked, **more).json()["data"]
        assert (found["object"], found["data"]) == ("pooling", wanted)
    [found] = app.post("/pooling", **asked, encoding_format="base64").json()["data"]
    packed = base64.b64decode(found["data"])
    assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == wanted
    for body, param in (
        ({"task": "embed"}, "model"),
        ({"task": "tokens"}, "task"),
        ({"task": "token_embed"}, "model"),
        ({"dimensions": 2}, "dimensions"),
    ):
        refused = app.post("/pooling", input=[5], **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_pooling_gives_rewards_of_steps(tmp_path, plugins, http) -> None:
    """With a model that answers in words, of which overrides make a process reward model."""
    make(tmp_path, {0: "bad"})
    (tmp_path / "model.safetensors").unlink()
    generator = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(tmp_path)
    ).eval()
    torch.nn.init.normal_(generator.lm_head.weight)
    generator.save_pretrained(tmp_path)
    overrides = {
        "architectures": ["LlamaForTokenClassification"],
        "classifier_from_token": [7, 8],
        "step_token": 5,
    }
    config = EngineConfig(str(tmp_path), platform="cpu", dtype="float32", hf_overrides=overrides)
    ids, bare = [3, 5, 9, 5, 4], [3, 9]
    with torch.inference_mode():
        found = generator(torch.tensor([ids])).logits[0]
    wanted = found[[1, 3]][:, [7, 8]].softmax(1)
    with closing(AsyncEngine(config)) as engine:
        http.app = create_app(make_state(ServerConfig(), engine, plugins))
        answer = http.post("/pooling", input=ids).json()
        assert answer["data"][0]["data"] == [
            pytest.approx(row, abs=1e-5) for row in wanted.tolist()
        ]
        refused = http.post("/pooling", input=bare)
    assert refused.status_code == 400
    assert "no token 5, which ends a step" in refused.json()["error"]["message"]


def test_a_conversation_has_a_class(app, served) -> None:
    engine, model = served
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    text = engine.tokenizer.apply_chat_template(talk, add_generation_prompt=False)
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    answer = app.post("/classify", messages=talk, use_activation=False).json()
    assert answer["data"][0]["probs"] == pytest.approx(logits(model, ids).tolist(), abs=1e-4)
    assert answer["usage"]["total_tokens"] == len(ids)


def test_pairs_are_scored_by_a_model_of_one_class_alone(app, served) -> None:
    engine, model = served
    answer = app.post("/score", text_1="Hello", text_2=TEXTS)
    if model.config.num_labels > 1:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert "--pooling" in answer.json()["error"]["message"]
        return
    scores = [
        logits(model, engine.tokenizer.encode(("Hello", text))).sigmoid().item() for text in TEXTS
    ]
    assert [d["score"] for d in answer.json()["data"]] == pytest.approx(scores, abs=1e-5)
    ranked = app.post("/rerank", query="Hello", documents=TEXTS, use_activation=False).json()
    best = max(range(2), key=lambda i: scores[i])
    assert ranked["results"][0]["index"] == best
    raw = ranked["results"][0]["relevance_score"]
    assert torch.tensor(raw).sigmoid().item() == pytest.approx(scores[best], abs=1e-5)
    long = app.post("/rerank", query="Hello", documents=["a", "b " * 300])
    assert (long.status_code, long.json()["error"]["param"]) == (400, "documents")
    cut = app.post("/rerank", query="Hello", documents=["b " * 300], truncate_prompt_tokens=9)
    assert cut.json()["usage"]["total_tokens"] == 9


def test_a_model_without_classes_says_what_has_them(http, engine) -> None:
    refused = http.post("/classify", input="Hello")
    assert refused.status_code == 400
    assert "LlamaForSequenceClassification" in refused.json()["error"]["message"]
    assert engine.requests == []


@pytest.mark.parametrize("path", ["/classify", "/pooling", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "a", "messages": TALK}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": TALK, "chat_template": "x"}, "chat_template"),
        ({"messages": TALK, "chat_template_kwargs": {"tools": 1}}, "chat_template"),
    ],
)
def test_what_is_no_text_is_named(http, engine, path, body, param) -> None:
    if path == "/classify":
        classifier = Classifier(("a", "b"), "softmax")
        engine.info = replace(engine.info, tasks=("classify",), classifier=classifier)
    response = http.post(path, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param), response.text
    assert engine.requests == []
