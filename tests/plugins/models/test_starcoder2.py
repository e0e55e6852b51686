"""StarCoder 2: windows, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_windows(build_family) -> None:
    for window in (None, 9):
        ctx = build_family("Starcoder2", sliding_window=window)
        assert [layer.spec.window for layer in ctx.cache_layers] == [window, window]


BAD = [
    ({"norm_epsilon": "small"}, "norm_epsilon.*small"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Starcoder2", **values)
