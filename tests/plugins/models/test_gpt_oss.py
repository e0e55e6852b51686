"""gpt-oss: sinks, windows, rotation, and experts that are stacked in the checkpoint."""

from hotshoe_models.gpt_oss import DEFAULT_ROPE

LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


def test_gpt_oss_rotates_as_its_class_does_where_the_file_says_nothing(build_family):
    silent = build_family("GptOss", **LOCAL, head_dim=16)
    said = build_family("GptOss", **LOCAL, head_dim=16, rope_parameters=DEFAULT_ROPE)
    other = build_family("GptOss", **LOCAL, head_dim=16, rope_parameters={"rope_theta": 9.0})
    tables = [ctx.cache_layers[0]._cos_sin for ctx in (silent, said, other)]
    assert tables[0].equal(tables[1]) and not tables[0].equal(tables[2])
    assert [layer.spec.window for layer in silent.cache_layers] == [128, None]
    assert all(layer.spec.sinks for layer in silent.cache_layers)


def test_experts_are_stacked_with_biases_and_their_gates_are_clamped(build_family):
    ctx = build_family("GptOss", **LOCAL, head_dim=16)
    shapes = {name: tuple(w.shape) for name, w in ctx.weights.expected.items()}
    experts = "model.layers.1.mlp.experts."
    assert shapes[f"{experts}gate_up_proj"] == (4, 128, 128)
    assert shapes[f"{experts}down_proj"] == (4, 64, 128)
    assert shapes[f"{experts}gate_up_proj_bias"] == (4, 128)
    assert shapes["model.layers.1.mlp.router.bias"] == (4,)
    assert shapes["model.layers.1.self_attn.sinks"] == (8,)
    [spec] = {spec for slot, spec in ctx.selector.decisions if slot == "moe"}
    assert (spec.limit, spec.alpha, spec.shift) == (7.0, 1.702, 1.0)
