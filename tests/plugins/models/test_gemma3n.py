"""Gemma 3n: parameters and defaults as transformers has them, whatever cannot be served."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {
    "head_dim": 16,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 32,
    "num_kv_shared_layers": 0,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def test_parameters_are_theirs(build_family):
    values = {"num_hidden_layers": 15, "num_kv_shared_layers": 5}
    config = transformers.Gemma3nTextConfig(**values)
    with torch.device("meta"):
        theirs = transformers.Gemma3nForCausalLM(config)
    ours = build_family("Gemma3n", sized=False, **values).weights.expected
    counted = sum(math.prod(weight.shape) for weight in ours.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


def test_the_first_ten_layers_are_sparse_where_there_are_more(build_family):
    config = transformers.Gemma3nTextConfig()
    ctx = build_family("Gemma3n", sized=False)
    assert len(ctx.cache_layers) == 20
    kinds = [layer.spec.window is None for layer in ctx.cache_layers]
    assert kinds == [kind == FULL for kind in config.layer_types[:20]]
    sparse = [i for i, x in enumerate(config.activation_sparsity_pattern) if x]
    assert sparse == list(range(10))
    blocks = [spec for slot, spec in ctx.selector.decisions if slot == "gated_activation"]
    assert {spec.size for spec in blocks} >= {256, 16384}


def test_an_unscaled_correction_skips_its_factors(build_family):
    name = "model.layers.0.altup.correct_output_scale"
    assert build_family("Gemma3n", **SMALL).weights.wants(name)
    weights = build_family("Gemma3n", **SMALL, altup_correct_scale=False).weights
    assert not weights.wants(name)


BAD = [
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"altup_active_idx": 4}, "altup_active_idx is 4.*4 streams"),
    ({"altup_num_inputs": 0}, "altup_num_inputs"),
    ({"intermediate_size": [8]}, "intermediate_size.*2 layers"),
    ({"intermediate_size": [8, -1]}, "intermediate_size.*positive"),
    ({"activation_sparsity_pattern": 0.5}, "activation_sparsity_pattern is 0.5"),
    ({"activation_sparsity_pattern": [0.5, 1.0]}, "activation_sparsity_pattern"),
    ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2"),
    ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input"),
    ({"laurel_rank": None, "sliding_window": None}, "sliding_window"),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Gemma3n", **{**SMALL, **values})
