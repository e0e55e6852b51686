"""Cohere 1 and 2: which layers rotate q and k, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_layers_of_cohere2_rotate_where_they_have_a_window(build_family) -> None:
    ctx = build_family("Cohere2", num_hidden_layers=5, sliding_window=9)
    assert [layer.spec.window for layer in ctx.cache_layers] == [9, 9, 9, None, 9]
    rotated = [layer._cos_sin is not None for layer in ctx.cache_layers]
    assert rotated == [True, True, True, False, True]


BAD = [
    ({"use_qk_norm": 1}, "use_qk_norm.*true or false"),
    ({"logit_scale": 0}, "logit_scale.*positive"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Cohere", **values)


MOE = {"num_experts": 4, "num_hidden_layers": 5, "sliding_window": 9}


def test_dense_layers_of_a_mixture_count_for_themselves(build_family) -> None:
    values = {**MOE, "first_k_dense_replace": 2, "prefix_dense_intermediate_size": 40}
    ctx = build_family("Cohere2Moe", **values)
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, None, 9, 9, 9]
    assert all(layer._cos_sin is not None for layer in ctx.cache_layers)
    shapes = {name: weight.shape for name, weight in ctx.weights.expected.items()}
    assert shapes["model.layers.1.mlp.up_proj.weight"] == (40, 128)
    assert shapes["model.layers.2.mlp.experts.3.up_proj.weight"] == (64, 128)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"expert_selection_fn": "tanh"}, "expert_selection_fn is 'tanh'"),
        ({"expert_selection_fn": ["softmax"]}, "expert_selection_fn"),
        ({"shared_expert_combination_strategy": "max"}, "combination_strategy is 'max'"),
        ({"shared_expert_combination_strategy": ["sum"]}, "combination_strategy"),
        ({"num_shared_experts": -1}, "num_shared_experts is -1"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
        ({"prefix_dense_sliding_window_pattern": 0}, "prefix_dense_sliding_window_pattern"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1"),
    ],
)
def test_bad_values_of_a_mixture_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Cohere2Moe", **{**MOE, **values})
