"""Zamba 1: which layers the transformer serves, heads of states, and values that cannot be."""

import pytest

from hotshoe.errors import CheckpointError, SelectionError
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import HOOK, candidates_of
from hotshoe.slots import REFERENCE, SLOTS, AttentionSpec, Selector

BASE = {"num_hidden_layers": 8, "num_key_value_heads": 8, "mamba_d_state": 8}


def test_the_transformer_serves_every_sixth_layer(build_family):
    ctx = build_family("Zamba", **BASE)
    names = set(ctx.weights.expected)
    assert {i for i in range(8) if f"model.layers.{i}.linear.weight" in names} == {2, 7}
    own = [name for name in names if ".shared_transf." in name]
    assert own and all(name.startswith("model.layers.2.") for name in own)
    # Each layer has states of two heads; two attend besides.
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert (kinds.count("state"), kinds.count("full")) == (16, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers_block_type": ["mamba"]}, "layers_block_type.*for each of 8 layers"),
        ({"layers_block_type": ["mamba", 7] * 4}, "layers_block_type.*hybrid"),
        ({"n_mamba_heads": 3}, "n_mamba_heads.*256 channels to divide"),
        ({"mamba_d_conv": 1}, "mamba_d_conv.*two tokens or more"),
        ({"hidden_mamba_act": "gelu"}, "hidden_mamba_act.*knows only silu"),
        ({"attention_hidden_size": 128}, "attention_hidden_size.*256 channels"),
        ({"attn_layer_period": 0}, "attn_layer_period"),
        ({"mamba_dt_rank": "many"}, "mamba_dt_rank"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Zamba", **{**BASE, **values})


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_no_kernel_of_gpus_attends_with_heads_as_wide_as_the_7b_has(name):
    plugins = PluginManager()
    platform = resolve_lazy(plugins.mapping(HOOK)[name])()
    offered = candidates_of(platform, plugins)
    spec = AttentionSpec(16, 16, 464, "bfloat16", "bfloat16", 32, 232**-0.5)
    for target in platform.targets:
        decision = Selector(SLOTS, offered, target.facts).decide("attention", spec)
        assert decision.chosen == REFERENCE
        others = [v.reason for n, v in decision.others if not v.accepted]
        assert any("head_dim 464 is not a multiple of 8 up to 256" in reason for reason in others)
        native = Selector(SLOTS, offered, target.facts, require_native=True)
        with pytest.raises(SelectionError, match=r"require-native.*head_dim 464"):
            native.decide("attention", spec)
