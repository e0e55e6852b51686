"""Cohere 1 and 2: which layers rotate q and k, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_layers_of_cohere2_rotate_where_they_have_a_window(build_family) -> None:
    ctx = build_family("Cohere2", num_hidden_layers=5, sliding_window=9)
    assert [layer.spec.window for layer in ctx.cache_layers] == [9, 9, 9, None, 9]
    rotated = [layer._cos_sin is not None for layer in ctx.cache_layers]
    assert rotated == [True, True, True, False, True]


BAD = [
    ({"use_qk_norm": True}, "use_qk_norm.*without norms"),
    ({"logit_scale": 0}, "logit_scale.*positive"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Cohere", **values)
