"""Names of tensors in layers, and rows of those that are parts of one."""

from dataclasses import replace

from hotshoe_models.gguf.families import FAMILIES


def test_a_number_that_no_layer_has_is_no_layer() -> None:
    name = f"blk.{'1' * 5000}.attn_norm.weight"
    assert FAMILIES["qwen35"].known_as(name) == name


def test_rows_of_parts_are_those_of_their_layer() -> None:
    family = replace(FAMILIES["qwen"], rows=[(4, 2, 2), (4, 1, 1)])
    assert family.rows_of("blk.1.attn_qkv.weight") == (4, 1, 1)
    assert family.rows_of("blk.2.attn_qkv.weight") == family.rows_of("token_embd.weight") == ()
