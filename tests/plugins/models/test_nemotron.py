"""Nemotron: how far heads are rotated, and its norms."""


def test_half_of_each_head_is_rotated(build_family) -> None:
    decisions = build_family("Nemotron").selector.decisions
    (spec,) = [spec for slot, spec in decisions if slot == "rotary_and_cache"]
    assert (spec.rotary_dim, spec.head_dim) == (8, 16)


def test_all_norms_are_layer_norms_with_biases(build_family) -> None:
    specs = [s for slot, s in build_family("Nemotron").selector.decisions if "norm" in slot]
    assert [(type(spec).__name__, spec.bias) for spec in specs] == [("LayerNormSpec", True)]
