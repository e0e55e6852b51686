"""OLMo 2 and 3: where their norms stand, and which layers have a window."""


def test_norms_stand_behind_blocks_and_none_before(build_family):
    names = set(build_family("Olmo2").weights.expected)
    layer = "model.layers.1."
    assert {
        f"{layer}post_attention_layernorm.weight",
        f"{layer}post_feedforward_layernorm.weight",
    } <= names
    assert f"{layer}input_layernorm.weight" not in names


def test_norms_of_q_and_k_span_all_heads(build_family):
    expected = build_family("Olmo2", num_key_value_heads=2).weights.expected
    sizes = [expected[f"model.layers.0.self_attn.{n}_norm.weight"].shape for n in "qk"]
    assert sizes == [(128,), (32,)]


def test_every_fourth_layer_of_olmo3_attends_to_everything(build_family):
    ctx = build_family("Olmo3", num_hidden_layers=5, sliding_window=9)
    assert [layer.spec.window for layer in ctx.cache_layers] == [9, 9, 9, None, 9]
