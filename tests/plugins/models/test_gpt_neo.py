"""GPT-Neo: which layers have a window, older checkpoints, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError

SIZES = {"num_layers": 4, "num_heads": 4, "hidden_size": 32}
PAIRS = [[["global", "local"], 2]]


def windows(ctx) -> list[int | None]:
    return [layer.spec.window for layer in ctx.cache_layers]


def test_no_sequence_is_longer_than_there_are_positions(build_family) -> None:
    sizes = {**SIZES, "attention_types": [[["global"], 4]], "max_position_embeddings": 20}
    build_family("GPTNeo", max_model_len=20, **sizes)
    with pytest.raises(ConfigError, match=r"max_model_len 21 exceeds the 20 positions"):
        build_family("GPTNeo", max_model_len=21, **sizes)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (PAIRS, [None, 9, None, 9]),
        ([[["local"], 1], [["global"], 3]], [9, None, None, None]),
    ],
)
def test_types_recur(build_family, types, expected) -> None:
    ctx = build_family("GPTNeo", **SIZES, attention_types=types, window_size=9)
    assert windows(ctx) == expected


def test_masks_of_older_checkpoints_are_passed_over(build_family) -> None:
    weights = build_family("GPTNeo", sized=False).weights
    assert not weights.wants("transformer.h.0.attn.attention.bias")
    assert not weights.wants("transformer.h.1.attn.attention.masked_bias")
    assert weights.wants("transformer.h.0.attn.attention.out_proj.bias")


BAD = [
    ({}, "attention_types is None.*4 layers"),
    ({"attention_types": [[["global", "local"], 3]]}, "attention_types.*4 layers"),
    ({"attention_types": [[["global", "near"], 2]]}, "attention_types.*local"),
    ({"attention_types": [[["global"], 10**12]]}, "attention_types"),
    ({"attention_types": ["global", 4]}, "attention_types"),
    ({"attention_types": [["global", 4]]}, "attention_types"),
    ({"attention_types": [[["global"], True], [["global"], 3]]}, "attention_types"),
    ({"attention_types": PAIRS, "window_size": 0}, "window_size"),
    ({"attention_types": PAIRS, "activation_function": "tanh"}, "activation_function.*tanh"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("GPTNeo", **{**SIZES, **values})
