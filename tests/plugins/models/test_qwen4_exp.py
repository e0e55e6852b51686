"""Qwen4-Exp: parameters as transformers has them, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError, ConfigError

SMALL = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1, 2],
    "ple_embed_dim": 64,
    "ngram_vocab_size_base": 100,
    "eos_token_id": 2,
}


def test_parameters_are_theirs(build_family):
    sizes = {**SMALL, "head_dim": 256, "indexer_head_dim": 256}
    config = transformers.Qwen4ExpTextConfig(**sizes)
    with torch.device("meta"):
        theirs = transformers.Qwen4ExpForCausalLM(config)
    ours = build_family("Qwen4Exp", sized=False, **sizes)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"indexer_budget": 18}, "indexer_budget is 18.*groups of 4 tokens"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2.*one key"),
        ({"indexer_head_dim": 8}, "indexer_head_dim is 8.*rotates 16"),
        ({"indexer_n_heads": None}, "indexer_n_heads"),
        ({"hc_count": 1}, "hc_count is 1.*several residual streams"),
        ({"ple_layer_ids": [4]}, "ple_layer_ids.*layers of linear_attention"),
        ({"ple_layer_ids": [0]}, "ple_layer_ids.*from 1 on"),
        ({"ple_embed_dim": 60}, "ple_embed_dim is 60.*among 16 rows"),
        ({"heads_per_ngram": 2**20}, "heads_per_ngram is 1048576.*at most 256 rows"),
        ({"ngram_size": 1}, "ngram_size is 1.*2 tokens or more"),
        ({"eos_token_id": None}, "eos_token_id is None.*an id"),
        ({"seed": "x"}, "seed is 'x'.*an integer"),
        ({"output_gate_type": "tanh"}, "output_gate_type"),
    ],
    ids=str,
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Qwen4Exp", **{**SMALL, **values})


def test_groups_are_whole_blocks(build_family):
    values = {**SMALL, "indexer_budget": 12, "indexer_compress_ratio": 2}
    with pytest.raises(ConfigError, match=r"block_size 4.*--block-size 2"):
        build_family("Qwen4Exp", **values)
