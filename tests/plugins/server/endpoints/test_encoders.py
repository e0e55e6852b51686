"""Encoders over HTTP: vectors of texts and of tokens, classes, pairs with two types of tokens."""

import base64
import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from hotshoe import AsyncEngine, EngineConfig
from hotshoe.engine.api import other_inputs
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.fleet import make_state

WORDS = "[PAD] [UNK] [CLS] [SEP] [Q] [D] a small bear climbs trees while the fox sleeps".split()
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")
TEXTS = ["a small bear", "the fox sleeps while trees"]
CLASSES = {"BertForTokenClassification": 3, "BertForSequenceClassification": 1}


def write_tokenizer(path) -> None:
    """Write a tokenizer of whole words, with BERT's template."""
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(WORDS[:6])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"sep_token": "[SEP]", "cls_token": "[CLS]"}')


def ids(*texts: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a text or a pair, and their types."""
    found, types = [CLS], [0]
    for kind, text in enumerate(texts):
        own = [*map(WORDS.index, text.split()), SEP]
        found, types = found + own, types + [kind] * len(own)
    return found, types


def colbert(path) -> torch.Tensor:
    """Make a saved model one of late interaction, and return its matrix."""
    tensors = load_file(path / "model.safetensors")
    matrix = torch.randn(8, 32)
    save_file(tensors | {"linear.weight": matrix}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    marks = {"query_token_id": "[Q]", "doc_token_id": "[D]", "dim": 8}
    (path / "artifact.metadata").write_text(json.dumps(marks))
    return matrix


@pytest.fixture(scope="module")
def served(request, tmp_path_factory) -> Iterator[tuple[AsyncEngine, transformers.PreTrainedModel]]:
    path = tmp_path_factory.mktemp("encoder")
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        num_labels=CLASSES.get(request.param, 2),
    )
    late = request.param == "HF_ColBERT"
    model = getattr(transformers, "BertModel" if late else request.param)(config).eval()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.5)
    model.save_pretrained(path)
    write_tokenizer(path)
    made = (model, colbert(path)) if late else model
    if request.param == "BertModel":
        prompts = {"query": "the fox ", "passage": "while ", "sts": ""}
        written = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"}
        (path / "config_sentence_transformers.json").write_text(json.dumps(written))
    pooling = "mean" if request.param == "BertModel" else None
    engine = AsyncEngine(EngineConfig(str(path), platform="cpu", dtype="float32", pooling=pooling))
    yield engine, made
    engine.close()


@pytest.fixture
def app(served, plugins, http):
    http.app = create_app(make_state(ServerConfig(), served[0], plugins))
    return http


@torch.inference_mode()
def made_by(model, *texts: str) -> torch.Tensor:
    tokens, types = (torch.tensor([part]) for part in ids(*texts))
    found = model(tokens, token_type_ids=types)
    return (found.logits if hasattr(found, "logits") else found.last_hidden_state)[0]


def near(expected: torch.Tensor) -> object:
    return pytest.approx(expected.tolist(), abs=1e-4)


def of(name: str) -> pytest.MarkDecorator:
    """Run a test with a model of one class."""
    return pytest.mark.parametrize("served", [name], indirect=True)


@of("BertModel")
def test_vectors_of_texts(app, served) -> None:
    model = served[1]
    answer = app.post("/v1/embeddings", input=TEXTS).json()
    for text, found in zip(TEXTS, answer["data"], strict=True):
        vector = made_by(model, text).mean(0)
        assert found["embedding"] == near(vector / vector.norm())
    assert answer["usage"]["prompt_tokens"] == sum(len(ids(text)[0]) for text in TEXTS)


@of("BertModel")
def test_vectors_of_tokens(app, served) -> None:
    model = served[1]
    asked = {"input": TEXTS, "task": "token_embed"}
    rows = [made_by(model, text) for text in TEXTS]
    unit = [row / row.norm(dim=1, keepdim=True) for row in rows]
    found = app.post("/pooling", **asked).json()["data"]
    for one, wanted in zip(found, unit, strict=True):
        np.testing.assert_allclose(one["data"], wanted, atol=1e-4)
    more = {"encoding_format": "base64", "dimensions": 5, "normalize": False}
    found = app.post("/pooling", **asked, **more).json()["data"]
    for one, wanted in zip(found, rows, strict=True):
        packed = np.frombuffer(base64.b64decode(one["data"]), "<f4").reshape(-1, 5)
        np.testing.assert_allclose(packed, wanted[:, :5], atol=1e-4)


@of("BertModel")
def test_an_answer_has_a_most_of_numbers(app, served, monkeypatch) -> None:
    monkeypatch.setattr(other_inputs, "MAX_NUMBERS", 32 * 9)
    asked = {"input": TEXTS, "task": "token_embed"}
    refused = app.post("/pooling", **asked)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "input")
    assert "12 tokens with 32 numbers each" in error["message"]
    assert app.post("/pooling", **asked, dimensions=24).is_success
    assert app.post("/pooling", input=TEXTS).is_success  # a vector each


@of("BertModel")
def test_a_longer_text_than_positions_is_refused_or_cut(app, served) -> None:
    long = " ".join(["bear"] * 40)
    refused = app.post("/v1/embeddings", input=long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    model = served[1]
    for count, text in ((-1, ["bear"] * 30), (5, ["bear"] * 3)):
        [made] = app.post("/v1/embeddings", input=long, truncate_prompt_tokens=count).json()["data"]
        vector = made_by(model, " ".join(text)).mean(0)  # the last token is a separator
        assert made["embedding"] == near(vector / vector.norm())


@of("BertModel")
@pytest.mark.parametrize(
    ("asked", "lead"),
    [
        ({}, ""),
        ({"prompt_name": "query"}, "the fox "),
        ({"prompt": "a bear "}, "a bear "),
        ({"input_type": "query"}, "the fox "),
        ({"input_type": "search_document"}, "while "),
        ({"input_type": "clustering"}, ""),
    ],
    ids=str,
)
def test_a_prompt_stands_in_front_of_texts(app, served, asked, lead) -> None:
    answer = app.post("/v1/embeddings", input=TEXTS, **asked).json()
    for text, found in zip(TEXTS, answer["data"], strict=True):
        vector = made_by(served[1], lead + text).mean(0)
        assert found["embedding"] == near(vector / vector.norm())


@of("BertModel")
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"input": "a", "prompt_name": "no"}, "prompt_name"),
        ({"input": "a", "input_type": "image"}, "input_type"),
        ({"input": [7, 8], "prompt": "a"}, "prompt"),
        ({"messages": [{"role": "user", "content": "a"}], "prompt_name": "query"}, "prompt_name"),
    ],
    ids=str,
)
def test_prompts_that_cannot_be(app, asked, field) -> None:
    refused = app.post("/v1/embeddings", **asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


@of("BertModel")
def test_texts_compare_as_the_files_say(app, served) -> None:
    query, model = "a fox", served[1]
    one, *others = (made_by(model, text).mean(0) for text in (query, *TEXTS))
    wanted = [(one @ other / one.norm() / other.norm()).item() for other in others]
    scores = app.post("/score", text_1=query, text_2=TEXTS).json()["data"]
    assert [found["score"] for found in scores] == pytest.approx(wanted, abs=1e-4)


@of("BertForSequenceClassification")
def test_pairs_have_two_types(app, served) -> None:
    model = served[1]
    query, documents = "a fox", [*TEXTS, "bear"]
    wanted = [made_by(model, query, text).sigmoid().item() for text in documents]
    scores = app.post("/score", text_1=query, text_2=documents).json()["data"]
    assert [one["score"] for one in scores] == pytest.approx(wanted, abs=1e-4)
    ranked = app.post("/v1/rerank", query=query, documents=documents).json()["results"]
    assert [r["index"] for r in ranked] == sorted(range(3), key=lambda i: -wanted[i])
    marked = app.post("/score", text_1="a [SEP] fox", text_2="bear").json()["usage"]
    assert marked["prompt_tokens"] > len(ids("a", "fox", "bear")[0])  # the text is no separator


@of("HF_ColBERT")
def test_late_interaction(app, served) -> None:
    model, matrix = served[1]

    def vectors(text: str, mark: str) -> torch.Tensor:
        tokens = ids(text)[0]
        with torch.inference_mode():
            marked = torch.tensor([[*tokens[:1], WORDS.index(mark), *tokens[1:]]])
            found = model(marked).last_hidden_state[0] @ matrix.T
        return found / found.norm(dim=1, keepdim=True)

    query, documents = "a fox", [*TEXTS, "bear"]
    wanted = [
        (vectors(query, "[Q]") @ vectors(text, "[D]").T).amax(1).sum().item() for text in documents
    ]
    answer = app.post("/score", text_1=query, text_2=documents).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx(wanted, abs=1e-4)
    tokens = [len(ids(text)[0]) + 1 for text in (query, *documents)]
    assert answer["usage"]["total_tokens"] == sum(tokens)
    each = app.post("/score", text_1=[query] * 3, text_2=documents).json()["data"]
    assert [one["score"] for one in each] == pytest.approx(wanted, abs=1e-4)
    ranked = app.post("/rerank", query=query, documents=documents, top_n=2).json()["results"]
    assert [r["index"] for r in ranked] == sorted(range(3), key=lambda i: -wanted[i])[:2]
    far = app.post("/score", text_1=query, text_2=" ".join(["bear"] * 30))
    assert (far.status_code, far.json()["error"]["param"]) == (400, "text_2")
    [found] = app.post("/pooling", input="bear").json()["data"]
    assert np.shape(found["data"]) == (3, 8)  # as it is, without a marker


@of("BertForSequenceClassification")
def test_a_text_has_a_class(app, served) -> None:
    model = served[1]
    [found] = app.post("/classify", input=TEXTS[0]).json()["data"]
    assert found["probs"] == near(made_by(model, TEXTS[0]).sigmoid())


@of("BertForTokenClassification")
def test_tokens_have_classes(app, served) -> None:
    model = served[1]
    for body in ({}, {"task": "token_classify"}):
        found = app.post("/pooling", input=TEXTS, **body).json()["data"]
        for text, one in zip(TEXTS, found, strict=True):
            np.testing.assert_allclose(one["data"], made_by(model, text).softmax(1), atol=1e-4)
    refused = app.post("/classify", input="bear")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
