"""EXAONE 4: which layers have a window, and which rotate q and k."""

import pytest

from hotshoe.errors import CheckpointError


def rotated(ctx) -> list[bool]:
    return [layer._cos_sin is not None for layer in ctx.cache_layers]


def test_every_fourth_layer_attends_to_everything_and_does_not_rotate(build_family) -> None:
    ctx = build_family("Exaone4", num_hidden_layers=5, sliding_window=9)
    assert [layer.spec.window for layer in ctx.cache_layers] == [9, 9, 9, None, 9]
    assert rotated(ctx) == [True, True, True, False, True]


@pytest.mark.parametrize("pattern", [None, 0, "LLLG"])
def test_without_windows_all_layers_rotate(build_family, pattern) -> None:
    ctx = build_family("Exaone4", sliding_window=None, sliding_window_pattern=pattern)
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, None]
    assert rotated(ctx) == [True, True]


def test_listed_layers_need_no_pattern(build_family) -> None:
    types = ["full_attention", "sliding_attention"]
    ctx = build_family("Exaone4", layer_types=types, sliding_window=7, sliding_window_pattern="LG")
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, 7]


MOE = {"num_experts": 8, "num_hidden_layers": 3}


def test_a_mixture_has_experts_behind_its_first_layers(build_family) -> None:
    for values, sparse in (
        ({}, [1, 2]),
        ({"first_k_dense_replace": 2}, [2]),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, [0, 2]),
    ):
        weights = build_family("ExaoneMoe", **MOE, **values).weights
        name = "model.layers.{}.mlp.e_score_correction_bias"
        assert [i for i in range(3) if name.format(i) in weights.expected] == sparse
        assert not weights.wants("mtp.fc.weight")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_group": 8, "topk_group": 1}, "n_group is 8.*two best"),
        ({"topk_group": 2}, "topk_group is 2.*1 groups"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
        ({"mlp_layer_types": "sparse"}, "mlp_layer_types is 'sparse'"),
    ],
)
def test_bad_values_of_a_mixture_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("ExaoneMoe", **{**MOE, **values})
