"""Flint: which layers have windows, rotation and experts."""


def test_layers_follow_the_published_pattern(build_family) -> None:
    values = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    ctx = build_family("Flint", num_hidden_layers=8, sliding_window=9, **values)
    windows = [layer.spec.window for layer in ctx.cache_layers]
    assert windows == [None, None, 9, 9, 9, None, 9, None]
    rotated = [layer._cos_sin is not None for layer in ctx.cache_layers]
    assert rotated == [window is not None for window in windows]
    assert all(layer.spec.sinks for layer in ctx.cache_layers)
    dense = [i for i in range(8) if f"model.layers.{i}.mlp.up_proj.weight" in ctx.weights.expected]
    assert dense == [0, 1]
