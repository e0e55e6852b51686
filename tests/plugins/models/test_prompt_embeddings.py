"""Prompts given as rows of the embedding's table are continued as their token ids are."""

import numpy as np
import pytest
import torch
import transformers

from hotshoe import LLM, EmbedsPrompt, PoolingParams, SamplingParams, TokensPrompt
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
    "eos_token_id": None,
}
PROMPTS = [[5, 9, 3], list(range(1, 50)), [7], [5, 9, 3, 4, 4, 4, 8, 1, 2]]
OPTIONS = {"platform": "cpu", "dtype": "float32", "skip_tokenizer_init": True, "block_size": 8}
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module", params=["Llama", "Gemma2", "Granite"])
def saved(request, tmp_path_factory):
    """A checkpoint, two of which scale embeddings, and its table."""
    path = tmp_path_factory.mktemp(request.param)
    more = {"embedding_multiplier": 3.0} if request.param == "Granite" else {}
    config = getattr(transformers, f"{request.param}Config")(**SIZES, head_dim=16, **more)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0  # the padding token's row is not looked at
    model.save_pretrained(path)
    return path, model.model.embed_tokens.weight.detach()


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}])
def test_rows_of_the_table_are_continued_as_their_ids(saved, options) -> None:
    path, table = saved
    with LLM(str(path), **OPTIONS, **options) as llm:
        by_ids = llm.generate([TokensPrompt(p) for p in PROMPTS], GREEDY)
        for prompts in (
            [EmbedsPrompt(table[p]) for p in PROMPTS],
            [EmbedsPrompt(table[p].numpy().astype(np.float64)) for p in PROMPTS],  # hits a prefix
        ):
            for wanted, found in zip(by_ids, llm.generate(prompts, GREEDY), strict=True):
                assert found.outputs[0].token_ids == wanted.outputs[0].token_ids
                assert len(found.prompt_token_ids) == len(wanted.prompt_token_ids)


def test_other_rows_share_no_prefix(saved) -> None:
    path, table = saved
    with LLM(str(path), **OPTIONS) as llm:
        first, second = (EmbedsPrompt(table[list(range(begin, 33))]) for begin in (1, 2))
        zeros = TokensPrompt([0] * 32)
        for prompt in (first, second, zeros):
            [output] = llm.generate(prompt, GREEDY)
            assert output.num_cached_tokens == 0
        [output] = llm.generate(first, GREEDY)
        assert output.num_cached_tokens == 24


@pytest.mark.parametrize(
    ("embeds", "words"),
    [
        (np.zeros((3, 63), np.float32), r"not \[3, 63\]"),
        (np.zeros((0, 64), np.float32), "empty"),
        (np.zeros((64, 64), np.float32), "maximum context length"),
        (np.full((3, 64), np.nan, np.float32), "NaN, infinity"),
    ],
)
def test_rows_that_cannot_be_used_are_named(saved, embeds, words) -> None:
    with LLM(str(saved[0]), **OPTIONS) as llm:
        with pytest.raises(RequestError, match=words) as found:
            llm.generate(EmbedsPrompt(embeds), GREEDY)
        assert found.value.field == "prompt"


def test_what_looks_at_token_ids_is_refused(saved) -> None:
    path, table = saved
    with LLM(str(path), **OPTIONS) as llm:
        for params in (SamplingParams(prompt_logprobs=1), SamplingParams(repetition_penalty=1.1)):
            with pytest.raises(RequestError, match="looks at the prompt's token ids"):
                llm.generate(EmbedsPrompt(table[[1, 2]]), params)


def test_rows_are_pooled_too(saved) -> None:
    path, table = saved
    with LLM(str(path), pooling="mean", **OPTIONS) as llm:
        [wanted] = llm.embed(TokensPrompt(PROMPTS[1]), PoolingParams())
        [found] = llm.embed(EmbedsPrompt(table[PROMPTS[1]]), PoolingParams())
        assert found.embedding == pytest.approx(wanted.embedding, abs=1e-5)
