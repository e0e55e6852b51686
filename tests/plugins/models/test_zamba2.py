"""Zamba 2: transformers that serve layers by turns, published layers, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
    "num_mem_blocks": 2,
    "n_mamba_heads": 8,
    "adapter_rank": 4,
}


def test_transformers_take_turns(build_family):
    ctx = build_family("Zamba2", **SMALL)
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds == ["full", "state", "state", "full", "state", "full", "state"]
    names = set(ctx.weights.expected)
    adapter = (
        "model.layers.{}.shared_transformer.feed_forward.gate_up_proj_adapter_list.{}.0.weight"
    )
    assert {adapter.format(0, 0), adapter.format(2, 1), adapter.format(0, 2)} <= names
    repeated = "model.layers.3.shared_transformer.self_attn.q_proj.weight"
    assert repeated not in names and not ctx.weights.wants(repeated)


def test_published_layers(build_family):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "adapter_rank": 2, "vocab_size": 8}
    ctx = build_family("Zamba2", sized=False, **sizes)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers].count("full") == 9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers_block_type": ["mamba"] * 3}, "layers_block_type.*each of 4"),
        ({"layers_block_type": ["attention"] * 4}, "layers_block_type.*hybrid"),
        ({"add_bias_linear": True}, "add_bias_linear.*false alone"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings.*true alone"),
        ({"use_long_context": True}, "use_long_context.*false alone"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"n_mamba_heads": 7}, "n_mamba_heads"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Zamba2", **{**SMALL, **values})
