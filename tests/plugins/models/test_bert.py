"""BERT's vectors equal those of transformers, whatever else is in a step."""

import json
import secrets

import pytest
import torch
import transformers

from hotshoe import LLM, PoolingParams, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, RequestError

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
#: What families need beside SIZES: positions behind padding's, one type.
BEHIND = {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}
MORE = {"Roberta": BEHIND, "XLMRoberta": BEHIND, "Camembert": BEHIND}
FAMILIES = ["Bert", *MORE]
SEPARATOR = 102
PROMPTS = [[5, 9, 3], list(range(3, 60)), [7], [5, 9, 3, 4, 4, 4, 8, 5, 6], list(range(2, 66))]
OPTIONS = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True}


def modules(path, flag, normalize=True):
    """Write what sentence-transformers has beside a model."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    found = [
        {"name": str(i), "path": f"{i}_{name}", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (path / "modules.json").write_text(json.dumps(found))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text(json.dumps({flag: True}))


def save(path, family="Bert", cls="Model", **values):
    """Save a checkpoint with random weights, and return transformers' model."""
    config = getattr(transformers, f"{family}Config")(**SIZES | MORE.get(family, {}) | values)
    torch.manual_seed(secrets.randbits(32))
    model = getattr(transformers, family + cls)(config).eval()
    for name, tensor in model.named_parameters():  # norms and biases start as ones and zeros
        torch.nn.init.normal_(tensor, std=0.3, mean=float("LayerNorm.weight" in name))
    model.save_pretrained(path)
    return model


@torch.inference_mode()
def states(model, prompt, types=None):
    types = None if types is None else torch.tensor([types])
    return model(torch.tensor([prompt]), token_type_ids=types).last_hidden_state[0]


POOLED = {
    "pooling_mode_cls_token": lambda h: h[0],
    "pooling_mode_mean_tokens": lambda h: h.mean(0),
    "pooling_mode_max_tokens": lambda h: h.amax(0),
    "pooling_mode_lasttoken": lambda h: h[-1],
    "pooling_mode_mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
    "pooling_mode_weightedmean_tokens": lambda h: h.T @ torch.arange(1.0, len(h) + 1),
}


def close(found, expected, atol=2e-5):
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("flag", POOLED)
def test_vectors_are_those_of_transformers(tmp_path, family, flag) -> None:
    model = save(tmp_path, family)
    modules(tmp_path, flag)
    with LLM(str(tmp_path), max_num_batched_tokens=70, max_num_seqs=3, **OPTIONS) as llm:
        info = llm.engine.info
        assert info.tasks == ("embed", "token_embed") and info.memory["kv_cache"] == 0
        assert info.config.max_model_len == 64
        for _ in range(2):
            found = llm.embed([TokensPrompt(p) for p in PROMPTS])
            for prompt, output in zip(PROMPTS, found, strict=True):
                wanted = POOLED[flag](states(model, prompt))
                close(output.embedding, wanted / wanted.norm())
        with pytest.raises(RequestError, match="generates no text; its tasks: embed, token_embed"):
            llm.generate(TokensPrompt([1]), SamplingParams())


def test_texts_are_as_long_as_sentence_transformers_says(tmp_path) -> None:
    save(tmp_path)
    modules(tmp_path, "pooling_mode_mean_tokens")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    prompts = {"prompts": {"query": "q"}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.engine.info.config.max_model_len == 20
        assert llm.engine.info.instructions.default == "query"
        with pytest.raises(RequestError, match="20 tokens"):
            llm.embed(TokensPrompt([5] * 21))
    with LLM(str(tmp_path), max_model_len=64, **OPTIONS) as llm:
        assert llm.embed(TokensPrompt([5] * 64))[0].embedding


def test_without_a_norm_vectors_are_the_states(tmp_path) -> None:
    model = save(tmp_path, "Bert", "ForMaskedLM", hidden_act="relu")
    modules(tmp_path, "pooling_mode_cls_token", normalize=False)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[1]))
        [short] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(8))
    close(output.embedding, states(model.bert, PROMPTS[1])[0], 1e-4)
    assert short.embedding == output.embedding[:8]


def test_tokens_behind_a_separator_are_of_the_second_type(tmp_path) -> None:
    model = save(tmp_path, sep_token_id=SEPARATOR)
    pair = [1, 5, 6, SEPARATOR, 7, 8, SEPARATOR]
    prompts = [pair, [1, 5, 6, SEPARATOR], [9], [SEPARATOR, 4], pair[2:]]
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in prompts], PoolingParams(normalize=False))
    for prompt, output in zip(prompts, found, strict=True):
        first = [*prompt, SEPARATOR].index(SEPARATOR)
        types = [int(i > first) for i in range(len(prompt))]
        close(output.embedding, states(model, prompt, types).mean(0), 1e-4)


def test_a_prompt_is_read_in_one_step_or_refused(tmp_path) -> None:
    save(tmp_path)
    options = {"pooling": "mean", "max_num_seqs": 2, **OPTIONS}
    with LLM(str(tmp_path), max_num_batched_tokens=16, **options) as llm:
        llm.embed([TokensPrompt([3] * 16), TokensPrompt([4] * 9), TokensPrompt([5] * 9)])
        with pytest.raises(RequestError, match="maximum context length is 16 tokens"):
            llm.embed(TokensPrompt([3] * 17))


def test_by_default_steps_hold_the_longest_prompt(tmp_path) -> None:
    save(tmp_path, max_position_embeddings=3000)
    with LLM(str(tmp_path), pooling="cls", max_num_seqs=2, **OPTIONS) as llm:
        assert llm.engine.info.config.max_num_batched_tokens == 3000
        change = next(c for c in llm.engine.info.changes if c.field == "max_num_batched_tokens")
        assert "a step takes all of a prompt" in change.reason
        llm.embed(TokensPrompt([3] * 3000))


def test_norms_of_older_files_have_other_names(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    model = save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, before in old.items():
        tensors = {f"bert.{k}".replace(new, before): v for k, v in tensors.items()}
        tensors = {k.replace("bert.bert.", "bert."): v for k, v in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    with LLM(str(tmp_path), pooling="cls", **OPTIONS) as llm:
        [output] = llm.embed(TokensPrompt(PROMPTS[0]), PoolingParams(normalize=False))
    close(output.embedding, states(model, PROMPTS[0])[0], 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(tmp_path, dtype) -> None:
    model = save(tmp_path)
    options = {**OPTIONS, "dtype": dtype, "pooling": "mean"}
    with LLM(str(tmp_path), **options) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        wanted = states(model, prompt).mean(0)
        likeness = torch.tensor(output.embedding) @ (wanted / wanted.norm())
        assert likeness > 0.996  # the mean may be short, and then rounding turns it further


@pytest.mark.parametrize(
    ("family", "values", "error", "message"),
    [
        ("Bert", {"position_embedding_type": "relative_key"}, CheckpointError, "absolute"),
        ("Bert", {"is_decoder": True}, CheckpointError, "as an encoder"),
        ("Bert", {"num_attention_heads": 5}, CheckpointError, "does not divide among 5 heads"),
        ("Roberta", {"pad_token_id": 0}, CheckpointError, "counts positions from 2"),
    ],
)
def test_refusals(tmp_path, family, values, error, message) -> None:
    save(tmp_path, family)
    with pytest.raises(error, match=message):
        LLM(str(tmp_path), hf_overrides=values, pooling="cls", **OPTIONS)
