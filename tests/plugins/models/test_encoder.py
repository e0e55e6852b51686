"""Vectors and classes of every family of encoders equal those of transformers."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.plugins.models.test_bert import (
    BEHIND,
    OPTIONS,
    POOLED,
    PROMPTS,
    close,
    modules,
    save,
    states,
)
from tests.plugins.server.endpoints.test_encoders import CLS, SEP, WORDS, write_tokenizer

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError, RequestError
from hotshoe_models import (
    bert,
    distilbert,
    eurobert,
    gte,
    modernbert,
    mpnet,
    nomic_bert,
    t5,
)
from hotshoe_models.encoder import num_seen
from hotshoe_models.plugin import ENCODER_CLASSIFIERS, ENCODERS

#: Short windows, so that texts are longer.
MODERN = {
    "num_hidden_layers": 3,
    "local_attention": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
DISTIL = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}
T5 = {"d_model": 64, "d_kv": 24, "d_ff": 96, "num_layers": 2, "num_heads": 4, "n_positions": 64}
DEBERTA = {
    "relative_attention": True,
    "position_biased_input": False,
    "position_buckets": 12,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
    "max_relative_positions": -1,
}
VALUES = {
    "DebertaV2": DEBERTA,
    "DistilBert": DISTIL,
    "Electra": {"embedding_size": 64},
    "EuroBert": {"pad_token_id": 0},
    "Data2VecText": BEHIND,
    "Ernie": {"use_task_id": True, "task_type_vocab_size": 3},
    "MPNet": BEHIND,
    "XLMRobertaXL": BEHIND,
    "MT5": T5,
    "T5": T5,
    "ModernBert": MODERN,
    "NomicBert": {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
}
NAMES = [name.removesuffix("ForSequenceClassification") for name in ENCODER_CLASSIFIERS]
#: Those that transformers has.
FAMILIES = [name for name in NAMES if name not in ("JinaBert", "New")]
VARIANTS = [
    ("DebertaV2", {}),
    ("DebertaV2", {"position_buckets": -1, "max_relative_positions": 40, "norm_rel_ebd": "none"}),
    ("DebertaV2", {"pos_att_type": ["c2p"]}),
    ("Data2VecText", {}),
    ("DistilBert", {"activation": "relu"}),
    ("Electra", {}),
    ("Ernie", {}),
    ("Ernie", {"use_task_id": False}),
    ("EuroBert", {"num_key_value_heads": 2}),
    ("Gte", {}),
    ("Gte", {"type_vocab_size": 0, "hidden_act": "silu"}),
    ("JinaEmbeddingsV3", {}),
    ("MPNet", {}),
    ("MT5Encoder", {}),
    ("T5Encoder", {}),
    ("T5Encoder", {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 8}),
    ("T5Encoder", {"relative_attention_max_distance": 20}),
    ("ModernBert", {}),
    ("ModernBert", {"attention_bias": True, "mlp_bias": True, "norm_bias": True}),
    ("ModernBert", {"local_attention": 200, "num_hidden_layers": 2}),
    ("NomicBert", {}),
    ("NomicBert", {"hidden_act": "gelu", "type_vocab_size": 1}),
    ("XLMRobertaXL", {}),
]
ATOL = 1e-4
#: What fills queries up to 12 tokens, and whether it is seen.
FILLED = [("pylate", True), ("pylate", False), ("colbert", True), ("colbert", False)]
MASK = WORDS.index("[UNK]")


@torch.inference_mode()
def logits(model, prompt, types=None):
    more = {} if types is None else {"token_type_ids": torch.tensor([types])}
    return model(torch.tensor([prompt]), **more).logits[0]


def made(path, family, cls="Model", **values):
    family, encoder, _ = family.partition("Encoder")
    return save(path, family, encoder + cls, **VALUES.get(family, {}) | values)


@pytest.mark.parametrize(("family", "values"), VARIANTS, ids=str)
def test_vectors_are_those_of_transformers(tmp_path, family, values) -> None:
    model = made(tmp_path, family, **values)
    modules(tmp_path, "pooling_mode_mean_tokens")
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor([prompt])).last_hidden_state[0]
        wanted = POOLED["pooling_mode_mean_tokens"](hidden)
        close(output.embedding, wanted / wanted.norm(), 2e-5)


def test_vectors_of_tokens_share_steps_with_others(tmp_path) -> None:
    model = made(tmp_path, "Bert")
    tokens = PoolingParams(task="token_embed")
    short = PoolingParams(dimensions=8, normalize=False, task="token_embed")
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        assert llm.engine.info.tasks == ("embed", "token_embed")
        llm.engine.add("a", TokensPrompt(PROMPTS[1]), PoolingParams())
        found = llm.token_embed([TokensPrompt(p) for p in PROMPTS], tokens)
        [cut] = llm.token_embed(TokensPrompt(PROMPTS[0]), short)
    for prompt, output in zip(PROMPTS, found, strict=True):
        hidden = states(model, prompt)
        close(output.vectors, hidden / hidden.norm(dim=1, keepdim=True))
        assert output.prompt_token_ids == prompt and output.labels is None
    close(cut.vectors, states(model, PROMPTS[0])[:, :8], ATOL)


def dense(path, number, sizes, activation="Identity", bias=True):
    """Write a module of sentence-transformers, and return what it computes."""
    folder = path / f"{number}_Dense"
    folder.mkdir()
    names = {"in_features": sizes[0], "out_features": sizes[1], "bias": bias}
    names |= {"activation_function": f"torch.nn.modules.activation.{activation}"}
    (folder / "config.json").write_text(json.dumps(names))
    linear = torch.nn.Linear(*sizes, bias=bias)
    tensors = {f"linear.{name}": tensor.data for name, tensor in linear.named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    act = getattr(torch.nn, activation)()
    return torch.inference_mode()(lambda x: act(linear(x)))


def list_modules(path, *names):
    found = [{"path": f"{i}_{name}", "type": f"models.{name}"} for i, name in enumerate(names)]
    (path / "modules.json").write_text(json.dumps(found))


def test_matrices_behind_the_pooling(tmp_path) -> None:
    model = made(tmp_path, "Bert")
    modules(tmp_path, "pooling_mode_mean_tokens")
    list_modules(tmp_path, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    wide = dense(tmp_path, 2, (64, 96), "Tanh")
    narrow = dense(tmp_path, 3, (96, 20), bias=False)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert (llm.engine.info.vector_size, llm.engine.info.token_size) == (20, 64)
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
        with pytest.raises(
            RequestError, match="dimensions is 21, but this model's vectors have 20"
        ):
            llm.embed(TokensPrompt([3]), PoolingParams(21))
        [output] = llm.token_embed(TokensPrompt(PROMPTS[0]))
    for prompt, one in zip(PROMPTS, found, strict=True):
        vector = narrow(wide(states(model, prompt).mean(0)))
        close(one.embedding, vector / vector.norm())
    assert len(output.vectors[0]) == 64


@pytest.mark.parametrize(("form", "fills"), [("pylate", None), *FILLED], ids=str)
def test_late_interaction(tmp_path, form, fills) -> None:
    values = {"vocab_size": len(WORDS), "max_position_embeddings": 32}
    model = made(tmp_path, "Bert", **values)
    write_tokenizer(tmp_path)
    special = {"sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(special))
    if form == "pylate":
        project = dense(tmp_path, 1, (64, 8), bias=False)
        list_modules(tmp_path, "Transformer", "Dense")
        marks = {"query_prefix": "[Q]", "document_prefix": "[D]", "skiplist_words": ["while"]}
        marks |= {"query_length": 12, "do_query_expansion": fills is not None}
        marks |= {"attend_to_expansion_tokens": fills}
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(marks))
    else:
        tensors = load_file(tmp_path / "model.safetensors")
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        matrix = tensors["linear.weight"] = torch.randn(8, 64)
        save_file(tensors, tmp_path / "model.safetensors")
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"architectures": ["HF_ColBERT"]})
        )
        marks = {"query_token_id": "[Q]", "doc_token_id": "[D]", "dim": 8, "query_maxlen": 12}
        marks |= {"attend_to_mask_tokens": fills}
        (tmp_path / "artifact.metadata").write_text(json.dumps(marks))

        def project(x):
            return x @ matrix.T

    def vectors(text, mark):
        ids = [CLS, WORDS.index(mark), *map(WORDS.index, text.split()), SEP]
        count = len(ids)
        if mark == "[Q]" and fills is not None:
            ids += [MASK] * (12 - count)
        seen = torch.tensor([[fills is True or i < count for i in range(len(ids))]])
        with torch.inference_mode():
            hidden = model(torch.tensor([ids]), attention_mask=seen.long()).last_hidden_state[0]
        found = project(hidden)
        kept = torch.tensor([form != "pylate" or WORDS[i] != "while" for i in ids])
        return found[kept] / found[kept].norm(dim=1, keepdim=True)

    query, documents = "a small fox", ["bear climbs while trees", "the fox", "fox a small"]
    wanted = [
        (vectors(query, "[Q]") @ vectors(text, "[D]").T).amax(1).sum().item() for text in documents
    ]
    options = {name: value for name, value in OPTIONS.items() if name != "skip_tokenizer_init"}
    with LLM(str(tmp_path), **options) as llm:
        assert llm.engine.info.tasks == ("token_embed",) and llm.engine.info.token_size == 8
        assert llm.score(query, documents) == pytest.approx(wanted, abs=1e-4)
        assert llm.score([query] * 3, documents) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("sizes", "tensors", "message"),
    [
        ((32, 8), {}, "in_features is 32, but the model's states have 64 entries"),
        ((64, 8), {"linear.weight": torch.zeros(8, 32)}, r"has shape \[8, 32\], not \[8, 64\]"),
        ((64, 8), {"other": torch.zeros(1)}, "has no linear.bias and linear.weight"),
    ],
)
def test_matrices_that_do_not_fit(tmp_path, sizes, tensors, message) -> None:
    made(tmp_path, "Bert")
    modules(tmp_path, "pooling_mode_mean_tokens")
    list_modules(tmp_path, "Transformer", "Pooling", "Dense")
    dense(tmp_path, 2, sizes, bias="other" in tensors or not tensors)
    if tensors:
        save_file(tensors, tmp_path / "2_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), **OPTIONS)


def test_matrices_are_drawn_with_the_other_weights(tmp_path) -> None:
    made(tmp_path, "Bert")
    modules(tmp_path, "pooling_mode_mean_tokens")
    list_modules(tmp_path, "Transformer", "Pooling", "Dense")
    dense(tmp_path, 2, (64, 8))
    (tmp_path / "2_Dense/model.safetensors").unlink()
    with LLM(str(tmp_path), load_format="dummy", **OPTIONS) as llm:
        assert len(llm.embed(TokensPrompt([3]))[0].embedding) == 8


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("Bert", bert.DEFAULTS),
        ("Electra", bert.DEFAULTS | bert.ELECTRA),
        ("Ernie", bert.DEFAULTS),
        ("Roberta", bert.DEFAULTS | bert.ROBERTA),
        ("DistilBert", distilbert.DEFAULTS),
        ("EuroBert", eurobert.DEFAULTS),
        ("Gte", gte.DEFAULTS),
        ("JinaEmbeddingsV3", gte.JINA),
        ("NomicBert", nomic_bert.DEFAULTS),
        ("MPNet", mpnet.DEFAULTS),
        ("MT5", t5.MT5),
        ("T5", t5.DEFAULTS),
        ("ModernBert", modernbert.DEFAULTS),
    ],
)
def test_defaults_are_those_of_the_configuration_class(name, defaults) -> None:
    config = getattr(transformers, f"{name}Config")()
    if name == "EuroBert":
        defaults = defaults | {"num_key_value_heads": config.num_key_value_heads}
        defaults |= {"head_dim": config.head_dim}
    made_up = {"position_embedding_type": "absolute", "layer_types": None, "rope_parameters": None}
    own = {key: getattr(config, key, None) for key in defaults}
    assert own | {k: v for k, v in made_up.items() if k in defaults} == defaults


def test_a_run_of_unseen_tokens_at_the_end_of_a_request() -> None:
    starts, lengths = torch.tensor([0, 4, 5, 9], dtype=torch.int32), (4, 1, 4)
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
    unseen = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1, 1])
    assert num_seen(unseen, positions, starts).tolist() == [4, 0, 1]


def test_every_encoder_is_tested() -> None:
    heads = {name.partition("For")[0].removesuffix("Model") for name in ENCODERS}
    others = {"EuroBert", "HF_ColBERT", "Gemma3Text", "MT5Encoder", "T5Encoder"}
    others |= {"BertSpladeSparseEmbedding", "LlamaBidirectional", "NeoBERT", "NeoBERTLMHead"}
    assert heads == {*NAMES, *others}


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("DebertaV2", {"conv_kernel_size": 3}, "is served with 0"),
        ("DebertaV2", {"share_att_key": False}, "positions share matrices"),
        ("DebertaV2", {"pos_att_type": "p2p"}, "knows only c2p and p2c"),
        ("DebertaV2", {"position_buckets": 200}, "have 2 to 125"),
        ("DebertaV2", {"position_biased_input": True}, "where it is false"),
        ("ModernBert", {"classifier_pooling": "max"}, "knows only cls and mean"),
        ("ModernBert", {"classifier_activation": "glu"}, "knows only gelu"),
        ("Electra", {"embedding_size": 32}, "where it is the hidden size"),
        ("MPNet", {"relative_attention_num_buckets": 16}, "is served with 32"),
        ("NomicBert", {"head_dim": 8}, "has 64 channels for 4 heads"),
        ("NomicBert", {"activation_function": "gelu"}, "is served with swiglu"),
        ("NomicBert", {"qkv_proj_bias": True}, "is served without it"),
        ("NomicBert", {"rotary_scaling_factor": 2.0}, "is served without it"),
        ("NomicBert", {"rotary_emb_fraction": 0.5}, "rotates whole heads"),
    ],
)
def test_refusals(tmp_path, family, values, message) -> None:
    made(tmp_path, family, "ForSequenceClassification")
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), hf_overrides=values, **OPTIONS)
