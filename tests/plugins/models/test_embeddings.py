"""Embeddings equal those of transformers: pooled as modules.json says, in chunks and batches."""

import json

import pytest
import torch
import transformers

from hotshoe import LLM, PoolingParams, SamplingParams, TokensPrompt
from hotshoe.errors import RequestError

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
PROMPTS = [[5, 9, 3], list(range(1, 60)), [7], [5, 9, 3, 4, 4, 4, 8, 1, 2], list(range(2, 66))]
OPTIONS = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True, "block_size": 8}


def save(path, family, headless, flag=None, normalize=True):
    """Save a checkpoint as sentence-transformers would, and return transformers' bare model."""
    config = getattr(transformers, f"{family}Config")(**SIZES)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    (model.model if headless else model).save_pretrained(path)
    if flag is not None:
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {
                "idx": 1,
                "name": "1",
                "path": "1_Pooling",
                "type": "sentence_transformers.models.Pooling",
            },
        ]
        if normalize:
            kind = "sentence_transformers.models.Normalize"
            modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind})
        (path / "modules.json").write_text(json.dumps(modules))
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling/config.json").write_text(json.dumps({flag: True}))
    return model.model


@torch.inference_mode()
def expected(model, prompt, kind, normalize=True, size=None):
    hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    found = (hidden[-1] if kind == "last" else hidden.mean(0))[:size]
    return found / found.norm() if normalize else found


@pytest.mark.parametrize(
    ("family", "headless", "flag", "kind", "normalize"),
    [
        ("Qwen3", True, "pooling_mode_lasttoken", "last", True),
        ("Qwen3", False, "pooling_mode_lasttoken", "last", True),
        ("Llama", True, "pooling_mode_mean_tokens", "mean", False),
        ("Mistral", True, "pooling_mode_mean_tokens", "mean", True),
        ("Qwen2", True, "pooling_mode_lasttoken", "last", False),
    ],
)
def test_vectors_are_those_of_transformers(
    tmp_path, family, headless, flag, kind, normalize
) -> None:
    model = save(tmp_path, family, headless, flag, normalize)
    with LLM(str(tmp_path), max_num_batched_tokens=16, max_num_seqs=3, **OPTIONS) as llm:
        for _ in range(2):  # the second time, prompts are found in the prefix cache
            found = llm.embed([TokensPrompt(p) for p in PROMPTS])
            for prompt, output in zip(PROMPTS, found, strict=True):
                assert output.outputs == [] and output.finished
                torch.testing.assert_close(
                    torch.tensor(output.embedding),
                    expected(model, prompt, kind, normalize),
                    rtol=0,
                    atol=1e-4,
                )
        [short] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams(dimensions=5, normalize=True))
        theirs = expected(model, PROMPTS[1], kind, True, 5)
        torch.testing.assert_close(torch.tensor(short.embedding), theirs, rtol=0, atol=1e-4)


def test_a_model_without_an_output_matrix_generates_nothing(tmp_path) -> None:
    save(tmp_path, "Qwen3", True, "pooling_mode_lasttoken")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(RequestError, match="generates no text; its tasks: embed"):
            llm.generate(TokensPrompt([1]), SamplingParams(max_tokens=2))
        assert len(llm.embed(TokensPrompt([1]))[0].embedding) == 64


def test_a_model_that_does_not_say_how_is_told_how(tmp_path) -> None:
    model = save(tmp_path, "Llama", False)
    refused = pytest.raises(RequestError, match="--pooling last, mean, cls or max")
    with LLM(str(tmp_path), **OPTIONS) as llm, refused:
        llm.embed(TokensPrompt([1, 2]))
    with LLM(str(tmp_path), pooling="mean", **OPTIONS) as llm:
        [found] = llm.embed(TokensPrompt([1, 2]))
        torch.testing.assert_close(
            torch.tensor(found.embedding), expected(model, [1, 2], "mean"), rtol=0, atol=1e-4
        )
        with pytest.raises(RequestError, match="dimensions is 65"):
            llm.embed(TokensPrompt([1, 2]), PoolingParams(dimensions=65))


def test_vectors_and_texts_share_steps(tmp_path) -> None:
    """Both kinds of requests at once give what each gives alone."""
    model = save(tmp_path, "Qwen3", False, "pooling_mode_mean_tokens")
    params = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM(str(tmp_path), max_num_batched_tokens=8, max_num_seqs=8, **OPTIONS) as llm:
        alone = [
            o.outputs[0].token_ids for o in llm.generate([TokensPrompt([5, 9, 3])] * 3, params)
        ]
        ids = llm.enqueue([TokensPrompt([5, 9, 3])] * 3, params)
        found = llm.embed([TokensPrompt(p) for p in PROMPTS])
        texts = llm.wait_for_completion()
        assert [t.request_id for t in texts] == ids
        assert [t.outputs[0].token_ids for t in texts] == alone
        for prompt, output in zip(PROMPTS, found, strict=True):
            theirs = expected(model, prompt, "mean")
            torch.testing.assert_close(torch.tensor(output.embedding), theirs, rtol=0, atol=1e-4)
