"""AFMoE: its gates, its rotation, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_gates_are_a_matrix_of_their_own(build_family) -> None:
    ctx = build_family("Afmoe", head_dim=16, num_hidden_layers=1)
    shapes = {name: weight.shape for name, weight in ctx.weights.expected.items()}
    prefix = "model.layers.0.self_attn."
    assert shapes[f"{prefix}gate_proj.weight"] == shapes[f"{prefix}q_proj.weight"] == (128, 128)


def test_layers_that_see_everything_do_not_rotate(build_family) -> None:
    ctx = build_family("Afmoe", head_dim=16, num_hidden_layers=4, global_attn_every_n_layers=2)
    specs = [spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert {spec.rotary_dim for spec in specs} == {0, 16}
    assert [layer.spec.window for layer in ctx.cache_layers] == [1024, None] * 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias is True.*False alone"),
        ({"score_func": "softmax"}, "score_func is 'softmax'.*'sigmoid' alone"),
        ({"n_group": 4}, "n_group is 4"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers"),
        ({"num_experts_per_tok": 65}, "num_experts_per_tok is 65.*64 experts"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Afmoe", **{"head_dim": 16, **values})
