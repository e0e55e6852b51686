"""Granite with windows: rotary bases of layers, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_every_base_is_one_rotation_and_zero_is_none(build_family) -> None:
    ctx = build_family("GraniteSWA", num_hidden_layers=4, layer_rope_theta=[0, 300.0, 300.0, 5000])
    dims = [spec.rotary_dim for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert set(dims) == {0, 16}
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, 128, 128, 128]
    assert all(layer.spec.sinks for layer in ctx.cache_layers)


@pytest.mark.parametrize("bases", [[1.0], [1.0, -2.0], [1.0, "3"], 5])
def test_bad_bases_are_named(build_family, bases) -> None:
    with pytest.raises(CheckpointError, match=r"layer_rope_theta.*each of 2 layers"):
        build_family("GraniteSWA", num_hidden_layers=2, layer_rope_theta=bases)
