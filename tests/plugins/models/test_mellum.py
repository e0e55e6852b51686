"""Mellum 2: which layers have experts, and layers that nobody reads."""


def test_layers_of_experts_and_layers_for_drafts(build_family) -> None:
    ctx = build_family("Mellum", head_dim=16, mlp_layer_types=["dense", "sparse"])
    names = {name.split(".")[4] for name in ctx.weights.expected if ".layers.0.mlp." in name}
    assert names == {"gate_proj", "up_proj", "down_proj"}
    assert any(".layers.1.mlp.experts.3." in name for name in ctx.weights.expected)
    assert not ctx.weights.wants("mtp.layers.0.norm.weight")
    assert "1 tensors of layers that predict further" in ctx.weights.notice()["unused weights"]
