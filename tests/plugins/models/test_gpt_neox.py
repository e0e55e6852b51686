"""GPT-NeoX: older keys and older checkpoints."""


def test_older_keys_say_how_q_and_k_are_rotated(build_family) -> None:
    ctx = build_family("GPTNeoX", rotary_pct=0.5)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert (spec.rotary_dim, spec.head_dim) == (8, 16)


def test_masks_of_older_checkpoints_are_passed_over(build_family) -> None:
    weights = build_family("GPTNeoX").weights
    assert not weights.wants("gpt_neox.layers.0.attention.masked_bias")
    assert weights.wants("gpt_neox.layers.0.attention.dense.bias")
