"""Embeddings of n-grams: hashes as transformers has them."""

import pytest
import torch
import transformers
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

from hotshoe_models.ngrams import NGramSpec


@pytest.mark.parametrize("index", [0, 2])
def test_hashes_are_theirs(index):
    config = transformers.Qwen4ExpTextConfig(
        ngram_size=4, heads_per_ngram=3, ngram_vocab_size_base=5000, seed=99, eos_token_id=1
    )
    with torch.device("meta"):
        theirs = Qwen4ExpTextNGramEmbedding(config, 90, 0, index)
    ours = NGramSpec(
        size=4,
        heads=3,
        dim=10,
        base=5000,
        multiple=128,
        seed=99,
        index=index,
        end=1,
        vocab_size=config.vocab_size,
    )
    assert ours.choices == theirs.head_vocab_sizes
    with torch.device("cpu"):
        made = Qwen4ExpTextNGramEmbedding(config, 90, 0, index).layer_multipliers.tolist()
    assert ours.multipliers == made
