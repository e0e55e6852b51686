"""EXAONE 4: which layers have a window, and which rotate q and k."""

import pytest


def rotated(ctx) -> list[bool]:
    return [layer._cos_sin is not None for layer in ctx.cache_layers]


def test_every_fourth_layer_attends_to_everything_and_does_not_rotate(build_family) -> None:
    ctx = build_family("Exaone4", num_hidden_layers=5, sliding_window=9)
    assert [layer.spec.window for layer in ctx.cache_layers] == [9, 9, 9, None, 9]
    assert rotated(ctx) == [True, True, True, False, True]


@pytest.mark.parametrize("pattern", [None, 0, "LLLG"])
def test_without_windows_all_layers_rotate(build_family, pattern) -> None:
    ctx = build_family("Exaone4", sliding_window=None, sliding_window_pattern=pattern)
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, None]
    assert rotated(ctx) == [True, True]


def test_listed_layers_need_no_pattern(build_family) -> None:
    types = ["full_attention", "sliding_attention"]
    ctx = build_family("Exaone4", layer_types=types, sliding_window=7, sliding_window_pattern="LG")
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, 7]
