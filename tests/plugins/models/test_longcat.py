"""LongCat Flash: caches and weights of its layers, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "num_layers": 1,
    "ffn_hidden_size": 32,
    "expert_ffn_hidden_size": 16,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "moe_topk": 3,
}


def test_a_layer_has_two_caches_and_no_weights_of_idle_experts(build_family):
    ctx = build_family("LongcatFlash", **SMALL)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["latent", "latent"]
    names = ctx.weights.expected
    assert names["model.layers.0.mlp.router.classifier.weight"].shape == (6, 128)
    assert "model.layers.0.mlp.experts.3.down_proj.weight" in names
    assert not ctx.weights.wants("model.layers.0.mlp.experts.5.gate_proj.weight")
    assert not ctx.weights.wants("model.mtp.layers.0.eh_proj.weight")
    assert set(ctx.weights.unused) == {
        "experts that put out what they take",
        "layers that predict further tokens",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"zero_expert_type": "drop"}, "zero_expert_type is 'drop'.*only 'identity'"),
        ({"mla_scale_kv_lora": False}, "mla_scale_kv_lora is False"),
        ({"router_bias": True}, "router_bias is True"),
        ({"zero_expert_num": -1}, "zero_expert_num.*at least 0"),
        ({"moe_topk": 5}, "moe_topk is 5.*4 experts"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("LongcatFlash", **{**SMALL, **values})


def test_halves_are_even(build_family):
    odd = {key: value for key, value in SMALL.items() if key != "num_layers"}
    with pytest.raises(CheckpointError, match=r"num_hidden_layers is 3.*two attentions"):
        build_family("LongcatFlash", **odd, num_hidden_layers=3)
